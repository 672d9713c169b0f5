"""The engine's own sink: opens and closes a response in the journal, so that it is written before told."""

from collections.abc import Callable

from antiphon.core.context import mcp_call
from antiphon.core.envelope import Outcome
from antiphon.core.transition import server_calls, spent_on, turns_of
from antiphon.domain.crash_points import reach
from antiphon.domain.steps import StepId, StepKind, StepState
from antiphon.domain.tools import ToolEffect
from antiphon.domain.usage import Usage
from antiphon.engine.failures import in_doubt_error, wire_error
from antiphon.engine.journal import RunJournal
from antiphon.engine.protocol import Ending, ResponseSink
from antiphon.engine.stopping import StopSignal
from antiphon.engine.telling import tell_tool_end


class JournalSink(ResponseSink):
    """A `ResponseSink` over a journal. `ended` is called once the ending is durable."""

    def __init__(
        self,
        journal: RunJournal,
        stop: StopSignal,
        clock: Callable[[], float],
        *,
        starts_queued: bool,
        ended: Callable[[Ending, bytes], None],
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._starts_queued = starts_queued
        self._ended = ended
        self.stop = stop
        self.narrator = journal.narrator

    async def begin(self) -> None:
        """A response that had to wait is in progress now."""
        if self._starts_queued:
            self._starts_queued = False
            outcome = Outcome()
            self._journal.run_state("running")
            self._journal.respond("in_progress", outcome, ended=False)
            self.narrator.response("response.in_progress", self._journal.body(outcome))

    async def flush(self) -> None:
        """Wait while too much is unwritten; stop at once when the claim is lost."""
        if self._journal.lost is not None:
            raise self._journal.lost
        if self._journal.crowded:
            await self._journal.written()

    def enter_step(self, step_id: StepId | None) -> None:
        """Events from here on may be struck with this attempt."""
        self._journal.enter_step(step_id)

    async def end(self, ending: Ending) -> None:
        """Close what is open, tell the terminal event, and return once all of it is durable."""
        journal = self._journal
        now = int(self._clock())
        reason = not_run_reason(ending)
        await self._end_sent_calls()
        self._close_open_calls(reason)
        journal.cancel_open_steps()
        outcome = Outcome(
            status=ending.status,
            completed_at=now if ending.status == "completed" else None,
            error=None if ending.error is None else wire_error(ending.error),
            incomplete_details=ending.incomplete_details,
            usage=used_by(journal),
        )
        body = journal.body(outcome, not_run=reason)
        if ending.error is not None and ending.status == "failed":
            self.narrator.error(ending.error)
        self.narrator.ended(ending.status, body)
        journal.respond(ending.status, outcome, ended=True, output=journal.output_items(not_run=reason))
        reach("end.before_commit")
        await journal.written()
        self._ended(ending, body)

    async def _end_sent_calls(self) -> None:
        """A call that was sent and may have taken effect is in doubt: nobody may say that it was not run."""
        for step in self._journal.chain.steps():
            if (
                step.kind is StepKind.TOOL_CALL
                and step.state is StepState.PROCESSING
                and step.request.get("effect") != ToolEffect.PURE
            ):
                result = in_doubt_error(step.request["call_id"])
                await self._journal.fail_step(step.id, {"code": result.error_code, "message": result.output})
                if step.parent is None:
                    tell_tool_end(self.narrator, step.request, result)

    def _close_open_calls(self, reason: str) -> None:
        """Calls of ours that never ran, or never ended, are shown as not run: the next turn stays valid."""
        for turn in turns_of(self._journal.chain.scope(None)):
            if turn.model_call.state is not StepState.COMPLETED:
                continue
            ended = {
                s.request_payload["call_id"]
                for s in turn.tool_calls
                if s.state in {StepState.COMPLETED, StepState.FAILED}
            }
            for call in server_calls(turn.model_call):
                if call["call_id"] not in ended:
                    self.narrator.item_done(call["output_index"], mcp_call(call, not_run=reason))


def not_run_reason(ending: Ending) -> str:
    """What the model is told of calls that were left open."""
    if ending.incomplete_details is not None:
        return str(ending.incomplete_details.get("reason"))
    return "the response was cancelled" if ending.status == "cancelled" else f"the response {ending.status}"


def used_by(journal: RunJournal) -> Usage | None:
    """The tokens of all rounds; None when no upstream counted any."""
    used = spent_on(journal.chain.views()).usage
    return used if used != Usage() else None
