"""The contract of a store, and the values that cross it.

A store keeps runs, responses, items, steps and events. Three views of it exist:

- `ResponseStepStore`: steps one by one, for people who build on steps;
- `ResponseStore`: whole responses and items, for the composable step functions;
- `Store`: both, and what the engine needs: `commit`, which does at one boundary, atomically, what
  several of the finer calls do one by one; claims; and the reads of the wire.

Rules that hold for every store:

- **Fence.** Each write names the fence under which it was made, and changes nothing when the fence has
  risen since. There is no read-then-write.
- **Payloads are bytes**, given back as they came.
- **Atomic.** A `Commit` is written whole or not at all. In a group each entry stands alone: a stale or
  refused entry falls out and the others are written.
- **Durable.** When `commit` has returned, a SIGKILL loses nothing of it (`memory:` excepted).
- Every row belongs to a project; reads name the project, and another project's ids are unknown.

All methods raise `StoreUnavailableError` when nothing could be written or read for a reason that may pass.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from antiphon.domain.errors import Error
from antiphon.domain.inference import Item
from antiphon.domain.responses import Response
from antiphon.domain.steps import CreateStepInput, ResponseStep, StepId, StepKind, StepState

DEFAULT_PROJECT = "default"

RunState = Literal["queued", "running", "ended"]
RunMode = Literal["foreground", "stream", "background"]
Order = Literal["asc", "desc"]


class Claim(msgspec.Struct, frozen=True):
    """The right to write for a run: valid while the run's row has this fence."""

    run_id: str
    fence: int
    owner: str


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run and its response, as admitted. Inserted with the claim's fence and owner.

    `request` is the frozen request (opaque), `envelope` the response's JSON object without `output`.
    `requires` names what a worker must know to run it (`model:…`, `tool:…`).
    """

    project: str
    response_id: str
    mode: RunMode
    state: RunState
    request: bytes
    body_digest: str
    created_at: float
    model: str
    status: str
    envelope: bytes
    previous_response_id: str | None = None
    idempotency_key: str | None = None
    requires: tuple[str, ...] = ()


class StoredItem(msgspec.Struct, frozen=True):
    """One item of one response: its id, its place in input or output, and its JSON object."""

    item_id: str
    position: int
    data: bytes


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """A step as stored: `ResponseStep` with its payloads as JSON bytes."""

    id: StepId
    request_id: str
    ordinal: int
    step_kind: StepKind
    step_sequence: int
    request_payload: bytes
    state: StepState
    created_at: float
    updated_at: float
    prev_step_id: StepId | None = None
    parent_step_id: StepId | None = None
    response_payload: bytes | None = None
    error: bytes | None = None
    retry_attempt: int = 0
    started_at: float | None = None
    completed_at: float | None = None
    failed_at: float | None = None
    canceled_at: float | None = None


class EventWindow(msgspec.Struct, frozen=True):
    """Events of one response that were written together.

    `frames` are whole event-stream frames, one after the other (`Event.frame`), with sequence numbers
    `first..last` and no gap. `step_id` is the model call whose attempt they tell of, None for events
    that no strike may take out.
    """

    first: int
    last: int
    step_id: StepId | None
    frames: bytes


class ResponseUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """A new status of the response. With `ended`, also its output, and the run ends with it."""

    status: str
    envelope: bytes
    ended: bool = False
    completed_at: float | None = None
    output: tuple[StoredItem, ...] = ()


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """What one run writes at one boundary, in this order: run, strikes, steps, events, items, response.

    `commit_no` rises by at least one with every commit of a run. `new_run` comes with the first commit of a
    run; without it the run's row must exist, not have ended, and carry the claim's fence and owner.
    `changed_steps` replace rows by id, along legal moves only: an open step may keep its state and change the
    rest, its place, kind and sequence never change. `struck_steps` are model calls whose events leave the
    log. `progressed` says that a step ended, which sets the takeover count to zero. `released` gives the
    claim up.
    `next_sequence_number` is the first number not yet used: `windows` rise, end below it, and begin at or
    above the one that the run had before, so that no number is ever used again.
    """

    claim: Claim
    commit_no: int
    response_id: str
    next_sequence_number: int
    new_run: NewRun | None = None
    input_items: tuple[StoredItem, ...] = ()
    run_state: RunState | None = None
    new_steps: tuple[StepRow, ...] = ()
    changed_steps: tuple[StepRow, ...] = ()
    struck_steps: tuple[StepId, ...] = ()
    windows: tuple[EventWindow, ...] = ()
    response: ResponseUpdate | None = None
    progressed: bool = False
    released: bool = False


CommitOutcome = Error | None
"""None: written. `ClaimLost`, `DuplicateResponseError`, `StoreRefusedError`: this entry fell out."""


class StoredRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run's row."""

    run_id: str
    project: str
    response_id: str
    state: RunState
    mode: RunMode
    request: bytes
    body_digest: str
    created_at: float
    fence: int
    owner: str | None
    commit_no: int
    takeovers: int
    next_sequence_number: int
    cancel_requested: bool = False
    keyed: bool = False
    requires: tuple[str, ...] = ()

    @property
    def claim(self) -> Claim:
        """The claim that this row shows."""
        return Claim(self.run_id, self.fence, self.owner or "")


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response's row; `output` is there once it has ended. `envelope` is its JSON without `output`."""

    response_id: str
    run_id: str
    project: str
    status: str
    model: str
    mode: RunMode
    created_at: float
    envelope: bytes
    previous_response_id: str | None = None
    completed_at: float | None = None
    next_sequence_number: int = 0
    output: tuple[StoredItem, ...] = ()


class History(msgspec.Struct, frozen=True):
    """The items of a response and of all before it, in order, and the row of the last turn."""

    last: StoredResponse
    items: tuple[StoredItem, ...]


class Page(msgspec.Struct, frozen=True):
    """Part of a list, and whether there is more after it."""

    items: tuple[StoredItem, ...]
    has_more: bool


class ResponsePage(msgspec.Struct, frozen=True):
    """Part of a list of responses (rows without output), and whether there is more after it."""

    responses: tuple[StoredResponse, ...]
    has_more: bool


class ResponseStepStore(Protocol):
    """Steps, one by one. Safe for many tasks at once."""

    async def create_step(self, step: CreateStepInput) -> StepId:
        """Insert in `pending`. Raise `DuplicateStep` when a step stands at this place or has this id."""
        ...

    async def get_step(self, step_id: StepId) -> ResponseStep | None:
        """The step, or None."""
        ...

    async def list_chain(self, request_id: str) -> list[ResponseStep]:
        """All steps of a run, every scope, by `step_sequence`."""
        ...

    async def list_scope(self, request_id: str, scope_parent: StepId | None) -> list[ResponseStep]:
        """The steps of one scope (None: the top level), by `step_sequence`."""
        ...

    async def mark_step_processing(self, step_id: StepId) -> None:
        """`pending` to `processing`, setting `started_at`; nothing when the step is past `pending`.

        Raises `StepNotFoundError`.
        """
        ...

    async def complete_step(self, step_id: StepId, response: Any) -> None:
        """`processing` to `completed`.

        Raises `StepAlreadyTerminal`, `IllegalMoveError`, `StepNotFoundError`; the step stays as it was.
        """
        ...

    async def fail_step(self, step_id: StepId, error: Any) -> None:
        """`pending` or `processing` to `failed`; raises as `complete_step`."""
        ...

    async def cancel_step(self, step_id: StepId) -> None:
        """`pending` or `processing` to `canceled`; raises as `complete_step`."""
        ...

    async def requeue_step_for_retry(self, step_id: StepId) -> None:
        """`processing` to `pending`, one `retry_attempt` more, `started_at` cleared.

        Refused with `IllegalMoveError` for a `tool_call` whose request payload says `"effect": "once"`.
        """
        ...


class ResponseStore(Protocol):
    """Whole responses and their items."""

    async def get_response(self, response_id: str) -> Response | None:
        """The response as it stands, or None."""
        ...

    async def get_items(self, ids: Sequence[str], *, project: str = DEFAULT_PROJECT) -> list[Item]:
        """The items that exist among these ids, in any order; of several with one id, the newest."""
        ...

    async def rehydrate(self, response_id: str) -> list[Item]:
        """The items of this response and of all before it, in order; `NotFoundError` when unknown."""
        ...

    async def persist(
        self,
        response: Response,
        *,
        conversation_id: str | None = None,
        previous_response_id: str | None = None,
    ) -> None:
        """Write an ended response with `response.input_items` and its output.

        `StoreRefusedError` when it has not ended, or when its id is taken.
        """
        ...


class Store(ResponseStepStore, ResponseStore, Protocol):
    """What the engine needs of a store."""

    async def open(self) -> None:
        """Make the store ready.

        `ConfigurationError` when it cannot be (in use by another process, written by a newer version).
        """
        ...

    async def close(self) -> None:
        """Finish what is under way and let go of files and connections."""
        ...

    def under(self, claim: Claim) -> ResponseStepStore:
        """The step methods, fenced: each that writes raises `ClaimLost` when the claim no longer holds.

        So it does for a step of another run, and once the run has ended.
        """
        ...

    async def commit(self, group: Sequence[Commit]) -> list[CommitOutcome]:
        """Write a group; one outcome per entry, in order. At most one entry per run.

        Raises `StoreUnavailableError` when nothing of the group was written.
        """
        ...

    async def take_over(self, owner: str) -> list[StoredRun]:
        """Claim every run that has not ended (raise its fence, own it, count the takeover); oldest first.

        It is counted where the run had an owner: a run that was handed back has none.
        """
        ...

    async def seize(self, run_id: str, owner: str, *, cancel: bool = False) -> StoredRun | None:
        """Raise the fence of a run that has not ended and own it; None when it has, or is unknown.

        `cancel` marks it, in the same statement, as to be cancelled by whoever drives it next.
        """
        ...

    async def get_run(self, run_id: str) -> StoredRun | None:
        """The run's row, or None."""
        ...

    async def list_steps(self, run_id: str) -> list[StepRow]:
        """All steps of a run as stored, by `step_sequence`."""
        ...

    async def read_response(self, project: str, response_id: str) -> StoredResponse | None:
        """The response with its output, or None when it is unknown, deleted or another project's."""
        ...

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
        """Responses by creation, without output.

        `prefix` keeps ids that begin with it, with or without `resp_`.
        An unknown `after` gives an empty page.
        """
        ...

    async def history(self, project: str, response_id: str) -> History | None:
        """A response and all before it, as one query whose visited rows grow only with the items returned."""
        ...

    async def input_items(
        self,
        project: str,
        response_id: str,
        *,
        limit: int = 20,
        after: str | None = None,
        order: Order = "desc",
    ) -> Page | None:
        """The input items of one response by position; None when it is unknown.

        An unknown `after` gives an empty page.
        """
        ...

    async def events(self, response_id: str, after: int, *, limit: int = 64) -> list[EventWindow]:
        """Windows whose `last` is above `after`, in order. The caller cuts the first where it must."""
        ...

    async def find_by_digest(self, project: str, body_digest: str, since: float) -> list[StoredRun]:
        """Runs admitted with this body since this time, newest first."""
        ...

    async def find_by_key(self, project: str, idempotency_key: str) -> tuple[str, str] | None:
        """`(response_id, body_digest)` under this idempotency key, or None. Outlives a deletion."""
        ...

    async def delete_response(self, project: str, response_id: str) -> bool:
        """Hide the id at once, and erase every hidden response that no living one descends from.

        False when unknown. `ConflictError` when the run has not ended. A hidden response still counts as
        history for those that descend from it. The idempotency row stays.
        """
        ...

    async def check(self) -> dict[str, Any]:
        """Prove that the store can be written, and say what it holds: counts and size in bytes."""
        ...
