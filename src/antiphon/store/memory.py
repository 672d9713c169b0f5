"""The store that keeps nothing when the process ends, and everything until then.

It holds what every store holds, in dicts, and refuses what every store refuses. One event loop uses it:
no method waits in its middle, so each is atomic, and there is nothing to lock. `memory_tables` holds the
rows, `memory_commit` writes entries; here are the calls.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from antiphon.domain.errors import ConflictError
from antiphon.domain.inference import Item
from antiphon.domain.steps import CreateStepInput, ResponseStep, StepId, StepState
from antiphon.store.entries import claim_lost
from antiphon.store.memory_commit import write_entry
from antiphon.store.memory_tables import Kept, Tables, in_order
from antiphon.store.protocol import (
    DEFAULT_PROJECT,
    Claim,
    Commit,
    CommitOutcome,
    EventWindow,
    History,
    Order,
    Page,
    ResponsePage,
    ResponseStepStore,
    StepRow,
    StoredResponse,
    StoredRun,
)
from antiphon.store.responses import WholeResponses, item_of
from antiphon.store.rows import (
    duplicate,
    moved,
    new_row,
    place_of,
    refusal_of_move,
    step_of,
    to_json,
)


class MemorySteps:
    """`ResponseStepStore` over tables in memory; fenced when there is a claim."""

    def __init__(self, tables: Tables, clock: Callable[[], float], claim: Claim | None = None) -> None:
        self._tables = tables
        self._clock = clock
        self._claim = claim

    async def create_step(self, step: CreateStepInput) -> StepId:
        """Insert in `pending`; see the protocol."""
        row = new_row(step, self._clock())
        self._require_claim(row.request_id)
        existing = row.id if row.id in self._tables.steps else self._tables.places.get(place_of(row))
        if existing is not None:
            raise duplicate(row, existing)
        self._tables.put_step(row)
        return row.id

    async def get_step(self, step_id: StepId) -> ResponseStep | None:
        """The step, or None."""
        row = self._tables.steps.get(step_id)
        return None if row is None else step_of(row)

    async def list_chain(self, request_id: str) -> list[ResponseStep]:
        """All steps of a run, every scope, by `step_sequence`."""
        return list(map(step_of, self._tables.chain(request_id)))

    async def list_scope(self, request_id: str, scope_parent: StepId | None) -> list[ResponseStep]:
        """The steps of one scope, by `step_sequence`."""
        scope = scope_parent or ""
        return [step_of(row) for row in self._tables.chain(request_id) if (row.parent_step_id or "") == scope]

    async def mark_step_processing(self, step_id: StepId) -> None:
        """`pending` to `processing`; nothing when the step is past `pending`."""
        row = self._tables.steps.get(step_id)
        if row is not None and row.state is not StepState.PENDING:
            self._require_claim(row.request_id)
        else:
            self._move(step_id, StepState.PROCESSING)

    async def complete_step(self, step_id: StepId, response: Any) -> None:
        """`processing` to `completed`."""
        self._move(step_id, StepState.COMPLETED, response_payload=to_json(response))

    async def fail_step(self, step_id: StepId, error: Any) -> None:
        """`pending` or `processing` to `failed`."""
        self._move(step_id, StepState.FAILED, error=to_json(error))

    async def cancel_step(self, step_id: StepId) -> None:
        """`pending` or `processing` to `canceled`."""
        self._move(step_id, StepState.CANCELED)

    async def requeue_step_for_retry(self, step_id: StepId) -> None:
        """`processing` to `pending`, one attempt more."""
        self._move(step_id, StepState.PENDING)

    def _move(
        self,
        step_id: StepId,
        state: StepState,
        *,
        response_payload: bytes | None = None,
        error: bytes | None = None,
    ) -> None:
        row = self._tables.steps.get(step_id)
        self._require_claim(None if row is None else row.request_id)
        refusal = refusal_of_move(row, step_id, state)
        if refusal is not None or row is None:
            raise refusal or KeyError(step_id)
        self._tables.put_step(
            moved(row, state, self._clock(), response_payload=response_payload, error=error)
        )

    def _require_claim(self, request_id: str | None) -> None:
        claim = self._claim
        if claim is None:
            return
        if not self._tables.holds(claim) or request_id not in {None, claim.run_id}:
            raise claim_lost(claim)


class MemoryStore(MemorySteps, WholeResponses):
    """`Store` without a disk; `clock` gives Unix seconds where no row brings its time."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(Tables(), clock)

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do: what is kept goes with the object."""

    def under(self, claim: Claim) -> ResponseStepStore:
        """The step methods, fenced."""
        return MemorySteps(self._tables, self._clock, claim)

    async def commit(self, group: Sequence[Commit]) -> list[CommitOutcome]:
        """Write a group, entry by entry."""
        return [write_entry(self._tables, commit) for commit in group]

    async def take_over(self, owner: str) -> list[StoredRun]:
        """Claim every run that has not ended."""
        taken = [
            replace(run, fence=run.fence + 1, takeovers=run.takeovers + (run.owner is not None), owner=owner)
            for run in self._tables.runs.values()
            if run.state != "ended"
        ]
        self._tables.runs |= {run.run_id: run for run in taken}
        return sorted(taken, key=lambda run: (run.created_at, run.run_id))

    async def seize(self, run_id: str, owner: str, *, cancel: bool = False) -> StoredRun | None:
        """Raise the fence of a run that has not ended, and own it."""
        run = self._tables.runs.get(run_id)
        if run is None or run.state == "ended":
            return None
        cancel_requested = run.cancel_requested or cancel
        seized = replace(run, fence=run.fence + 1, owner=owner, cancel_requested=cancel_requested)
        self._tables.runs[run_id] = seized
        return seized

    async def get_run(self, run_id: str) -> StoredRun | None:
        """The run's row, or None."""
        return self._tables.runs.get(run_id)

    async def list_steps(self, run_id: str) -> list[StepRow]:
        """All steps of a run as stored."""
        return self._tables.chain(run_id)

    async def read_response(self, project: str, response_id: str) -> StoredResponse | None:
        """The response with its output."""
        kept = self._tables.visible(project, response_id)
        return None if kept is None else self._row(kept, with_output=True)

    async def list_responses(
        self,
        project: str,
        *,
        limit: int = 20,
        after: str | None = None,
        order: Order = "desc",
        status: str | None = None,
        prefix: str | None = None,
    ) -> ResponsePage:
        """Responses by creation."""
        begins = (prefix or "", f"resp_{prefix or ''}")
        found = sorted(
            (_time_of(kept) for kept in self._tables.responses.values() if kept.row.project == project),
            reverse=order == "desc",
        )
        if after is not None:
            places = [place for place in found if place[1] == after]
            found = found[found.index(places[0]) + 1 :] if places else []
        rows = [
            self._row(kept)
            for _, response_id in found
            if (kept := self._tables.visible(project, response_id)) is not None
            and (status is None or kept.row.status == status)
            and response_id.startswith(begins)
        ]
        return ResponsePage(tuple(rows[:limit]), has_more=len(rows) > limit)

    async def history(self, project: str, response_id: str) -> History | None:
        """A response and all before it."""
        last = self._tables.visible(project, response_id)
        if last is None:
            return None
        turns, turn = [last], last
        while (parent := self._tables.responses.get(turn.row.previous_response_id or "")) is not None:
            if parent.row.project != project or parent.number >= turn.number:
                break
            turns.append(parent)
            turn = parent
        items = (item for turn in reversed(turns) for item in turn.items())
        return History(self._row(last, with_output=True), tuple(items))

    async def input_items(
        self,
        project: str,
        response_id: str,
        *,
        limit: int = 20,
        after: str | None = None,
        order: Order = "desc",
    ) -> Page | None:
        """The input items of one response."""
        kept = self._tables.visible(project, response_id)
        if kept is None:
            return None
        items = list(in_order(kept.input))
        if order == "desc":
            items.reverse()
        if after is not None:
            places = [place for place, item in enumerate(items) if item.item_id == after]
            items = items[places[-1] + 1 :] if places else []
        return Page(tuple(items[:limit]), has_more=len(items) > limit)

    async def get_items(self, ids: Sequence[str], *, project: str = DEFAULT_PROJECT) -> list[Item]:
        """The items of this project that exist among these ids; of several with one id, the newest."""
        wanted = set(ids)
        found = {
            item.item_id: item
            for kept in self._tables.responses.values()
            if kept.row.project == project and not kept.deleted
            for item in kept.items()
            if item.item_id in wanted
        }
        return list(map(item_of, found.values()))

    async def events(self, response_id: str, after: int, *, limit: int = 64) -> list[EventWindow]:
        """Windows whose `last` is above `after`."""
        kept = self._tables.responses.get(response_id)
        if kept is None or kept.deleted:
            return []
        begin = bisect_right(kept.windows, after, key=_last_of)
        return kept.windows[begin : begin + limit]

    async def find_by_digest(self, project: str, body_digest: str, since: float) -> list[StoredRun]:
        """Runs admitted with this body since this time."""
        found = [
            run
            for run in self._tables.runs.values()
            if (run.project, run.body_digest) == (project, body_digest)
            and run.created_at >= since
            and self._tables.visible(project, run.response_id) is not None
        ]
        return sorted(found, key=lambda run: (run.created_at, run.run_id), reverse=True)

    async def find_by_key(self, project: str, idempotency_key: str) -> tuple[str, str] | None:
        """Who used this idempotency key."""
        return self._tables.keys.get((project, idempotency_key))

    async def delete_response(self, project: str, response_id: str) -> bool:
        """Hide a response, and erase what nothing living descends from."""
        tables = self._tables
        kept = tables.visible(project, response_id)
        if kept is None:
            return False
        if tables.runs[kept.row.run_id].state != "ended":
            raise ConflictError(f"{response_id} has not ended", hint="Cancel it, then delete it.")
        kept.deleted = True
        erasable: Kept | None = kept
        while erasable is not None and erasable.deleted and not tables.children.get(erasable.row.response_id):
            self._erase(erasable)
            erasable = tables.responses.get(erasable.row.previous_response_id or "")
        return True

    async def check(self) -> dict[str, Any]:
        """Count what is held."""
        tables = self._tables
        states = [run.state for run in tables.runs.values()]
        kept = tables.responses.values()
        return {
            "kind": "memory",
            "size_bytes": sum(map(_size_of, kept)) + sum(map(_size_of_step, tables.steps.values())),
            "runs": {state: states.count(state) for state in ("queued", "running", "ended")},
            "responses": sum(not one.deleted for one in kept),
            "items": sum(len(one.input) + len(one.output) for one in kept),
            "steps": len(tables.steps),
            "event_windows": sum(len(one.windows) for one in kept),
        }

    def _row(self, kept: Kept, *, with_output: bool = False) -> StoredResponse:
        run = self._tables.runs[kept.row.run_id]
        output = tuple(in_order(kept.output)) if with_output else ()
        return replace(kept.row, next_sequence_number=run.next_sequence_number, output=output)

    def _erase(self, kept: Kept) -> None:
        tables, row = self._tables, kept.row
        for step_id in tables.chains.pop(row.run_id, ()):
            del tables.places[place_of(tables.steps.pop(step_id))]
        tables.children.pop(row.response_id, None)
        tables.children.get(row.previous_response_id or "", set()).discard(row.response_id)
        del tables.runs[row.run_id], tables.responses[row.response_id]


def _last_of(window: EventWindow) -> int:
    return window.last


def _time_of(kept: Kept) -> tuple[float, str]:
    return kept.row.created_at, kept.row.response_id


def _size_of(kept: Kept) -> int:
    items = sum(len(item.data) for item in kept.items())
    return len(kept.row.envelope) + items + sum(len(window.frames) for window in kept.windows)


def _size_of_step(row: StepRow) -> int:
    return len(row.request_payload) + len(row.response_payload or b"") + len(row.error or b"")
