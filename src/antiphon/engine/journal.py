"""The journal of one run: what has happened, in order, and what of it is written.

The loop calls it like any `MultiStepStore`; each call changes the chain in memory and adds to one
pending entry. Nothing leaves the process before its entry is written:

- `mark_step_processing` returns once everything up to and including the mark is durable. What came
  before it since the last commit (the end of the step before, new siblings, events) goes into the same
  commit: one boundary, one commit.
- Events go into the pending entry and are published to readers when it has been written.
- `ended` returns once the terminal entry is durable.

Three ways of writing: `durable` as above; `deferred` (a plain foreground response without tools: nothing
can be known of it before its answer, so all is written in the terminal commit); `ephemeral`
(`store: false`: nothing is written, events are published as they come).

When a commit finds the claim lost, the journal is dead: every wait raises `ClaimLost`, nothing more is
written or published.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from antiphon.core.context import output_of
from antiphon.core.envelope import Outcome, encode, envelope, with_output
from antiphon.core.narration import Narrator
from antiphon.domain.actions import NextAction, StepDescriptor
from antiphon.domain.crash_points import reach
from antiphon.domain.errors import Error, StepAlreadyTerminal
from antiphon.domain.events import Event
from antiphon.domain.inference import InferenceRequest
from antiphon.domain.steps import ChainStep, RecordedStep, StepId, StepKind, StepState, step_id_at
from antiphon.engine.chain import LiveStep, RunChain
from antiphon.engine.committer import Committer
from antiphon.engine.live import Channel
from antiphon.engine.protocol import RetryingStore
from antiphon.engine.scopes import Scopes
from antiphon.observe import metrics
from antiphon.store.protocol import (
    Claim,
    Commit,
    CommitOutcome,
    EventWindow,
    NewRun,
    ResponseUpdate,
    RunState,
    StoredItem,
)

Writing = Literal["durable", "deferred", "ephemeral"]

MOST_BYTES_PENDING = 4 * 1024 * 1024


class _Pending:
    """What has happened since the last entry was taken."""

    __slots__ = (
        "bytes", "frames", "progressed", "released", "response", "run_state", "struck", "waiters", "windows",
    )  # fmt: skip

    def __init__(self) -> None:
        self.windows: list[EventWindow] = []
        self.frames: list[bytes] = []
        self.bytes = 0
        self.struck: list[StepId] = []
        self.run_state: RunState | None = None
        self.response: ResponseUpdate | None = None
        self.progressed = False
        self.released = False
        self.waiters: list[asyncio.Future[None]] = []

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to write."""
        return not (self.windows or self.struck or self.run_state or self.response or self.released)

    def release_waiters(self) -> None:
        """Everything here is durable."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()


class RunJournal(RetryingStore):
    """One run under one claim. A `MultiStepStore` and a `RetryingStore` for the loop."""

    def __init__(
        self,
        *,
        claim: Claim,
        response_id: str,
        static: bytes,
        scopes: Scopes,
        committer: Committer | None,
        channel: Channel,
        clock: Callable[[], float],
        writing: Writing = "durable",
        chain: RunChain | None = None,
        commit_no: int = 0,
        next_sequence_number: int = 0,
        told: bool = True,
        on_admitted: Callable[[], None] = lambda: None,
        on_lost: Callable[["RunJournal", Error], None] = lambda _journal, _error: None,
    ) -> None:
        self.claim = claim
        self.response_id = response_id
        self.chain = chain or RunChain()
        self.writing: Writing = writing
        self.lost: Error | None = None
        self.next_sequence_number = next_sequence_number
        self._static = static
        self._scopes = scopes
        self._committer = committer
        self._channel = channel
        self._clock = clock
        self._commit_no = commit_no
        self._on_admitted = on_admitted
        self._on_lost = on_lost
        self._admission: tuple[NewRun, tuple[StoredItem, ...]] | None = None
        self._pending = _Pending()
        self._in_flight: _Pending | None = None
        self._attempt_of: StepId | None = None
        self._first_frame = next_sequence_number
        self.narrator = Narrator(
            self.emit if told else None,
            sequence_number=next_sequence_number,
            output_index=len(output_of(self.chain.scope(None))),
        )

    # --- what the loop calls -------------------------------------------------------------------

    async def next_action_for(self, request_id: str, scope_parent: StepId | None) -> NextAction:  # noqa: ARG002 - one journal, one run
        """The transition for one scope; model calls carry what the model is to be asked."""
        return self._scopes.next_action(self.chain, scope_parent)

    async def record_step(
        self,
        request_id: str,
        scope_parent: StepId | None,
        prev_step: StepId | None,
        descriptor: StepDescriptor,
    ) -> RecordedStep:
        """Insert-or-get by place. What a model is asked is not stored again: history has it."""
        step_id = step_id_at(request_id, scope_parent, descriptor.ordinal)
        step = self.chain.find(step_id)
        if step is None:
            step = LiveStep(
                step_id,
                request_id,
                descriptor.kind,
                (scope_parent, descriptor.ordinal),
                self.chain.next_sequence,
                prev_step,
                _stored_form(descriptor.request_payload),
                self._clock(),
            )
            self.chain.add(step)
        return RecordedStep(step.id, step.sequence)

    async def mark_step_processing(self, step_id: StepId) -> None:
        """Mark, and return once that is durable. Nothing when the step is past `pending`."""
        step = self.chain.get(step_id)
        if step.state is StepState.PENDING:
            self._move(step, StepState.PROCESSING)
        await self.written()

    async def complete_step(self, step_id: StepId, response: Any) -> None:
        """End a step with its result; it is durable with the next boundary."""
        step = self._open(step_id)
        self._end(step, StepState.COMPLETED)
        step.response = response

    async def fail_step(self, step_id: StepId, error: Any) -> None:
        """End a step with its error; it is durable with the next boundary."""
        step = self._open(step_id)
        self._end(step, StepState.FAILED)
        step.error = error

    async def retry_step(self, step_id: StepId) -> int:
        """Requeue a step whose attempt broke off, and strike what a model call had told."""
        step = self.chain.get(step_id)
        self.requeue(step_id)
        if step.kind is StepKind.MODEL_CALL and step.parent is None:
            self.strike(step_id)
        return step.attempt

    def may_retry(self, step_id: StepId) -> bool:
        """False for what has been told and was never written: it cannot be taken back."""
        return not (
            self.writing == "ephemeral"
            and self.narrator.listening
            and self.chain.get(step_id).kind is StepKind.MODEL_CALL
        )

    def attempt_of(self, step_id: StepId) -> int:
        """How often the step was tried before."""
        return self.chain.get(step_id).attempt

    async def list_chain(self, request_id: str, scope_parent: StepId | None) -> list[ChainStep]:  # noqa: ARG002 - one journal, one run
        """One scope, by sequence."""
        return self.chain.scope(scope_parent)

    async def assemble_response(self, request_id: str) -> dict[str, Any]:  # noqa: ARG002 - one journal, one run
        """The Response JSON as it stands."""
        body: dict[str, Any] = msgspec.json.decode(self.body(Outcome()))
        return body

    # --- what the engine calls -----------------------------------------------------------------

    def admit(self, new_run: NewRun, input_items: tuple[StoredItem, ...]) -> None:
        """The first entry of a new run."""
        self._admission = (new_run, input_items)

    def body(self, outcome: Outcome, *, not_run: str | None = None) -> bytes:
        """The whole response as JSON."""
        output = encode(output_of(self.chain.scope(None), not_run=not_run))
        return with_output(envelope(self.response_id, self._static, outcome), output)

    def requeue(self, step_id: StepId) -> None:
        """`processing` to `pending`: the next attempt has another number."""
        self._move(self.chain.get(step_id), StepState.PENDING)

    def cancel_open_steps(self) -> None:
        """End every open step as canceled."""
        for step in self.chain.steps():
            if not step.state.is_terminal:
                self._move(step, StepState.CANCELED)

    def enter_step(self, step_id: StepId | None) -> None:
        """Events from here on tell of this attempt, and may be struck with it."""
        if step_id != self._attempt_of:
            self._cut_window()
            self._attempt_of = step_id

    def strike(self, step_id: StepId) -> None:
        """Take the events of this step's attempt out of the log, and tell where the response stands.

        That `response.in_progress` begins a window of its own: a reader knows by it that what it carried
        was torn (`following`).
        """
        if not self.narrator.listening:
            return
        metrics.STRUCK.inc()
        self._cut_window()
        self._attempt_of = None
        kept = [w for w in self._pending.windows if w.step_id != step_id]
        self._pending.windows = kept
        self._pending.struck.append(step_id)
        self.narrator.output_index = len(output_of(self.chain.scope(None)))
        self.narrator.response("response.in_progress", self.body(Outcome()))

    def emit(self, event: Event) -> None:
        """Add an event; readers hear of it when it has been written."""
        pending = self._pending
        frame = event.frame()
        pending.frames.append(frame)
        pending.bytes += len(frame)
        self.next_sequence_number = event.sequence_number + 1
        if self.writing == "durable":
            self._kick(urgent=False)
        elif self.writing == "ephemeral":
            self._publish_unwritten()

    @property
    def crowded(self) -> bool:
        """True when so much is unwritten that the run should wait."""
        return self._pending.bytes > MOST_BYTES_PENDING and self.writing == "durable"

    def run_state(self, state: RunState) -> None:
        """The run itself moves on: takeovers that it waited through are not held against it."""
        self._pending.run_state = state
        self._pending.progressed = True

    def respond(
        self, status: str, outcome: Outcome, *, ended: bool, output: Sequence[StoredItem] = ()
    ) -> None:
        """The response has a new status; with `ended` the run ends too."""
        if ended:
            self._pending.run_state = "ended"
            if self.writing == "deferred":
                self.writing = "durable"
        self._pending.response = ResponseUpdate(
            status=status,
            envelope=envelope(self.response_id, self._static, outcome),
            ended=ended,
            completed_at=outcome.completed_at,
            output=tuple(output),
        )

    def release(self) -> None:
        """Give the claim up with the next entry."""
        self._pending.released = True

    def output_items(self, *, not_run: str | None) -> tuple[StoredItem, ...]:
        """The output as it is stored."""
        items = output_of(self.chain.scope(None), not_run=not_run)
        return tuple(StoredItem(item["id"], place, encode(item)) for place, item in enumerate(items))

    async def written(self) -> None:
        """Return once everything so far is durable; raise when it never will be."""
        if self.lost is not None:
            raise self.lost
        if self.writing != "durable":
            return
        waiter = asyncio.get_running_loop().create_future()
        self._pending.waiters.append(waiter)
        self._kick(urgent=True)
        await waiter

    # --- what the committer calls --------------------------------------------------------------

    def take(self) -> Commit | None:
        """Everything that has happened since the last entry, as one commit."""
        if self.lost is not None or self.writing != "durable":
            return None
        self._cut_window()
        pending = self._pending
        if self._admission is None and pending.is_empty and not self.chain.is_changed:
            pending.release_waiters()
            return None
        self._pending = _Pending()
        self._in_flight = pending
        admission, self._admission = self._admission, None
        self._commit_no += 1
        if admission is not None:
            reach("admission.before_commit")
        return Commit(
            claim=self.claim,
            commit_no=self._commit_no,
            response_id=self.response_id,
            next_sequence_number=self.next_sequence_number,
            new_run=admission[0] if admission else None,
            input_items=admission[1] if admission else (),
            run_state=pending.run_state,
            new_steps=self.chain.take_new(),
            changed_steps=self.chain.take_changed(),
            struck_steps=tuple(pending.struck),
            windows=tuple(pending.windows),
            response=pending.response,
            progressed=pending.progressed,
            released=pending.released,
        )

    def settle(self, commit: Commit, outcome: CommitOutcome) -> None:
        """The entry is durable: publish it. Or it never will be: die."""
        settled, self._in_flight = self._in_flight, None
        if outcome is not None:
            self.die(outcome, settled)
            return
        if commit.new_run is not None:
            reach("admission.after_commit")
            self._on_admitted()
        if commit.response is not None and commit.response.ended:
            reach("end.after_commit")
        reach("publish.before")
        for window in commit.windows:
            self._channel.publish(window)
        reach("publish.after")
        if settled is not None:
            settled.release_waiters()

    def die(self, error: Error, settled: _Pending | None = None) -> None:
        """Write and publish nothing more; whoever waits hears why."""
        if self.lost is not None:
            return
        self.lost = error
        for pending in (settled, self._pending):
            for waiter in pending.waiters if pending else ():
                if not waiter.done():
                    waiter.set_exception(error)
        self._pending = _Pending()
        self._on_lost(self, error)

    # --- inside --------------------------------------------------------------------------------

    def _kick(self, *, urgent: bool) -> None:
        if self._committer is not None:
            self._committer.kick(self, urgent=urgent)

    def _open(self, step_id: StepId) -> LiveStep:
        step = self.chain.get(step_id)
        if step.state.is_terminal:
            raise StepAlreadyTerminal(f"Step {step_id} is {step.state} and stays so.")
        return step

    def _end(self, step: LiveStep, state: StepState) -> None:
        self._move(step, state)
        metrics.STEPS.labels(step.kind, state).inc()
        self._pending.progressed = True
        if self.writing == "durable":
            self._kick(urgent=False)

    def _move(self, step: LiveStep, to: StepState) -> None:
        step.move(to, self._clock())
        self.chain.touch(step)

    def _cut_window(self) -> None:
        pending = self._pending
        if pending.frames:
            first = self._first_frame
            last = first + len(pending.frames) - 1
            pending.windows.append(EventWindow(first, last, self._attempt_of, b"".join(pending.frames)))
            pending.frames = []
        self._first_frame = self.next_sequence_number

    def _publish_unwritten(self) -> None:
        self._cut_window()
        windows, self._pending.windows = self._pending.windows, []
        self._pending.bytes = 0
        for window in windows:
            self._channel.publish(window)


def _stored_form(payload: Any) -> Any:
    if isinstance(payload, InferenceRequest):
        return {"model": payload.model, "context_items": len(payload.input)}
    return payload
