"""The step methods, one statement each, with or without a claim.

The claim is part of the statement that writes. Only when that statement changed nothing is there a
second look, in the same transaction, to say why.
"""

import sqlite3
from collections.abc import Callable
from typing import Any

from antiphon.domain.errors import Error, StoreRefusedError
from antiphon.domain.steps import CreateStepInput, ResponseStep, StepId, StepState
from antiphon.store.entries import claim_lost
from antiphon.store.protocol import Claim, StepRow
from antiphon.store.rows import duplicate, new_row, refusal_of_move, step_of, to_json
from antiphon.store.sqlite import reads
from antiphon.store.sqlite.readers import Readers
from antiphon.store.sqlite.statements import SQL
from antiphon.store.sqlite.writer import Writer

_CREATE_STEP = SQL["create_step"]
_MOVE_STEP = SQL["move_step"]
_CLAIM_HOLDS = SQL["claim_holds"]
_STEP_IN_THE_WAY = SQL["step_in_the_way"]


class SqliteSteps:
    """`ResponseStepStore` over a SQLite file; fenced when there is a claim."""

    def __init__(
        self, writer: Writer, readers: Readers, clock: Callable[[], float], claim: Claim | None = None
    ) -> None:
        self._writer = writer
        self._readers = readers
        self._clock = clock
        self._claim = claim
        self._fence: dict[str, Any] = {
            "run_id": claim.run_id if claim else None,
            "fence": claim.fence if claim else None,
            "owner": claim.owner if claim else None,
        }

    async def create_step(self, step: CreateStepInput) -> StepId:
        """Insert in `pending`; see the protocol."""
        row = new_row(step, self._clock())
        return await self._writer.ask(lambda connection: self._create(connection, row))

    async def get_step(self, step_id: StepId) -> ResponseStep | None:
        """The step, or None."""
        row = await self._readers.ask(lambda connection: reads.step_by_id(connection, step_id))
        return None if row is None else step_of(row)

    async def list_chain(self, request_id: str) -> list[ResponseStep]:
        """All steps of a run, every scope, by `step_sequence`."""
        rows = await self._readers.ask(lambda connection: reads.steps_of_run(connection, request_id))
        return list(map(step_of, rows))

    async def list_scope(self, request_id: str, scope_parent: StepId | None) -> list[ResponseStep]:
        """The steps of one scope, by `step_sequence`."""
        rows = await self._readers.ask(
            lambda connection: reads.steps_of_scope(connection, request_id, scope_parent)
        )
        return list(map(step_of, rows))

    async def mark_step_processing(self, step_id: StepId) -> None:
        """`pending` to `processing`; nothing when the step is past `pending`."""
        await self._move(step_id, StepState.PROCESSING)

    async def complete_step(self, step_id: StepId, response: Any) -> None:
        """`processing` to `completed`."""
        await self._move(step_id, StepState.COMPLETED, response_payload=to_json(response))

    async def fail_step(self, step_id: StepId, error: Any) -> None:
        """`pending` or `processing` to `failed`."""
        await self._move(step_id, StepState.FAILED, error=to_json(error))

    async def cancel_step(self, step_id: StepId) -> None:
        """`pending` or `processing` to `canceled`."""
        await self._move(step_id, StepState.CANCELED)

    async def requeue_step_for_retry(self, step_id: StepId) -> None:
        """`processing` to `pending`, one attempt more."""
        await self._move(step_id, StepState.PENDING)

    def _create(self, connection: sqlite3.Connection, row: StepRow) -> StepId:
        values = {
            "id": row.id,
            "request_id": row.request_id,
            "ordinal": row.ordinal,
            "step_kind": row.step_kind,
            "step_sequence": row.step_sequence,
            "request_payload": row.request_payload,
            "now": row.created_at,
            "prev_step_id": row.prev_step_id,
            "parent_step_id": row.parent_step_id,
            **self._fence,
        }
        try:
            created = connection.execute(_CREATE_STEP, values).rowcount
        except sqlite3.IntegrityError:
            place = (row.id, row.request_id, row.parent_step_id, row.ordinal)
            existing = connection.execute(_STEP_IN_THE_WAY, place).fetchone()
            if existing is None:
                raise
            raise duplicate(row, existing[0]) from None
        if not created:
            raise self._why_unclaimed()
        return row.id

    async def _move(
        self,
        step_id: StepId,
        state: StepState,
        *,
        response_payload: bytes | None = None,
        error: bytes | None = None,
    ) -> None:
        values = {
            "id": step_id,
            "state": state,
            "now": self._clock(),
            "response_payload": response_payload,
            "error": error,
            **self._fence,
        }
        await self._writer.ask(lambda connection: self._move_row(connection, step_id, state, values))

    def _move_row(
        self, connection: sqlite3.Connection, step_id: StepId, state: StepState, values: dict[str, Any]
    ) -> None:
        if state is StepState.PENDING:
            # What a step runs on never changes, so looking at its effect first is no race.
            self._look(connection, step_id, state)
        if connection.execute(_MOVE_STEP, values).rowcount == 0:
            self._look(connection, step_id, state)

    def _look(self, connection: sqlite3.Connection, step_id: StepId, state: StepState) -> None:
        """Raise what keeps the step from moving; being past `pending` already is no reason to."""
        row = reads.step_by_id(connection, step_id)
        if self._claim is not None and not self._holds(connection, row):
            raise claim_lost(self._claim)
        if state is StepState.PROCESSING and row is not None and row.state is not StepState.PENDING:
            return
        refusal = refusal_of_move(row, step_id, state)
        if refusal is not None:
            raise refusal

    def _holds(self, connection: sqlite3.Connection, row: StepRow | None) -> bool:
        claim = self._claim
        if claim is None or (row is not None and row.request_id != claim.run_id):
            return False
        found = connection.execute(_CLAIM_HOLDS, (claim.run_id, claim.fence, claim.owner)).fetchone()
        return found is not None

    def _why_unclaimed(self) -> Error:
        if self._claim is None:  # pragma: no cover - without a claim the insert has no condition
            return StoreRefusedError("the step was not created")
        return claim_lost(self._claim)
