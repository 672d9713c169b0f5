"""The chain of a run in memory: every step of every scope, as last known, and which of them changed."""

from collections.abc import Iterable
from typing import Any

import msgspec

from antiphon.domain.errors import IllegalMoveError, StepAlreadyTerminal, StepNotFoundError
from antiphon.domain.steps import LEGAL_MOVES, ChainStep, StepId, StepKind, StepState
from antiphon.store.protocol import StepRow

encode = msgspec.json.encode
decode = msgspec.json.decode

ENDED_AT = {
    StepState.COMPLETED: "completed_at",
    StepState.FAILED: "failed_at",
    StepState.CANCELED: "canceled_at",
}


class LiveStep:
    """One step: its place never changes, the rest moves along `LEGAL_MOVES`."""

    __slots__ = (
        "_view", "attempt", "canceled_at", "completed_at", "created_at", "error", "failed_at", "id", "kind",
        "ordinal", "parent", "previous", "request", "response", "run_id", "sequence", "started_at", "state",
        "updated_at",
    )  # fmt: skip

    def __init__(  # noqa: PLR0917 - made in two places of this house
        self,
        step_id: StepId,
        run_id: str,
        kind: StepKind,
        place: tuple[StepId | None, int],
        sequence: int,
        previous: StepId | None,
        request: Any,
        now: float,
    ) -> None:
        self.id = step_id
        self.run_id = run_id
        self.kind = kind
        self.parent, self.ordinal = place
        self.sequence = sequence
        self.previous = previous
        self.request = request
        self.response: Any = None
        self.error: Any = None
        self.state = StepState.PENDING
        self.attempt = 0
        self.created_at = self.updated_at = now
        self._view: ChainStep | None = None
        self.started_at: float | None = None
        self.completed_at: float | None = None
        self.failed_at: float | None = None
        self.canceled_at: float | None = None

    @classmethod
    def from_row(cls, row: StepRow) -> "LiveStep":
        """The step as stored."""
        place = (row.parent_step_id, row.ordinal)
        step = cls(
            row.id,
            row.request_id,
            row.step_kind,
            place,
            row.step_sequence,
            row.prev_step_id,
            decode(row.request_payload),
            row.created_at,
        )
        step.response = None if row.response_payload is None else decode(row.response_payload)
        step.error = None if row.error is None else decode(row.error)
        step.state = row.state
        step.attempt = row.retry_attempt
        step.updated_at = row.updated_at
        step.started_at, step.completed_at = row.started_at, row.completed_at
        step.failed_at, step.canceled_at = row.failed_at, row.canceled_at
        return step

    def move(self, to: StepState, now: float) -> None:
        """Move, or raise `StepAlreadyTerminal` or `IllegalMoveError`."""
        if self.state.is_terminal:
            raise StepAlreadyTerminal(f"Step {self.id} is {self.state} and stays so.")
        if to not in LEGAL_MOVES[self.state]:
            raise IllegalMoveError(f"Step {self.id} cannot move from {self.state} to {to}.")
        self._view = None
        self.state = to
        self.updated_at = now
        match to:
            case StepState.PROCESSING:
                self.started_at = now
            case StepState.PENDING:
                self.started_at = None
                self.attempt += 1
            case _:
                setattr(self, ENDED_AT[to], now)

    def view(self) -> ChainStep:
        """The step as the loop and the transition see it."""
        if self._view is None:
            self._view = self._make_view()
        return self._view

    def _make_view(self) -> ChainStep:
        return ChainStep(
            id=self.id,
            kind=self.kind,
            state=self.state,
            sequence=self.sequence,
            request_payload=self.request,
            prev_step_id=self.previous,
            parent_step_id=self.parent,
            response_payload=self.response,
            error=self.error,
            ordinal=self.ordinal,
            retry_attempt=self.attempt,
        )

    def row(self) -> StepRow:
        """The step as it is written."""
        return StepRow(
            id=self.id,
            request_id=self.run_id,
            ordinal=self.ordinal,
            step_kind=self.kind,
            step_sequence=self.sequence,
            request_payload=encode(self.request),
            state=self.state,
            created_at=self.created_at,
            updated_at=self.updated_at,
            prev_step_id=self.previous,
            parent_step_id=self.parent,
            response_payload=None if self.response is None else encode(self.response),
            error=None if self.error is None else encode(self.error),
            retry_attempt=self.attempt,
            started_at=self.started_at,
            completed_at=self.completed_at,
            failed_at=self.failed_at,
            canceled_at=self.canceled_at,
        )


class RunChain:
    """All steps of a run, by id and by scope, in the order of their sequence numbers."""

    def __init__(self, rows: Iterable[StepRow] = ()) -> None:
        self._by_id: dict[StepId, LiveStep] = {}
        self._by_scope: dict[StepId | None, list[LiveStep]] = {}
        self.new: dict[StepId, None] = {}
        self.changed: dict[StepId, None] = {}
        self.next_sequence = 0
        for row in rows:
            self._insert(LiveStep.from_row(row))

    def _insert(self, step: LiveStep) -> None:
        self._by_id[step.id] = step
        scope = self._by_scope.setdefault(step.parent, [])
        scope.append(step)
        if len(scope) > 1 and scope[-2].ordinal > step.ordinal:
            scope.sort(key=lambda s: s.ordinal)
        self.next_sequence = max(self.next_sequence, step.sequence + 1)

    def add(self, step: LiveStep) -> None:
        """A step that is not stored yet."""
        self._insert(step)
        self.new[step.id] = None

    def find(self, step_id: StepId) -> LiveStep | None:
        """The step with this id."""
        return self._by_id.get(step_id)

    def get(self, step_id: StepId) -> LiveStep:
        """The step with this id; `StepNotFoundError` when there is none."""
        try:
            return self._by_id[step_id]
        except KeyError:
            raise StepNotFoundError(f"No step has the id {step_id}.") from None

    def touch(self, step: LiveStep) -> None:
        """The step has changed and must be written."""
        if step.id not in self.new:
            self.changed[step.id] = None

    def scope(self, parent: StepId | None) -> list[ChainStep]:
        """One scope, in order."""
        return [step.view() for step in self._by_scope.get(parent, ())]

    def steps(self) -> list[LiveStep]:
        """All steps of all scopes, by sequence."""
        return sorted(self._by_id.values(), key=lambda s: s.sequence)

    def views(self) -> list[ChainStep]:
        """All steps of all scopes as the transition sees them, by sequence."""
        return [step.view() for step in self.steps()]

    @property
    def is_changed(self) -> bool:
        """True when some step is not written as it stands."""
        return bool(self.new or self.changed)

    def take_new(self) -> tuple[StepRow, ...]:
        """The steps to insert; they count as written from here on."""
        rows = tuple(self._by_id[step_id].row() for step_id in self.new)
        self.new.clear()
        return rows

    def take_changed(self) -> tuple[StepRow, ...]:
        """The steps to update; they count as written from here on."""
        rows = tuple(self._by_id[step_id].row() for step_id in self.changed)
        self.changed.clear()
        return rows
