"""Recovery: what a new owner does with the steps that it finds open.

| found | then |
|---|---|
| any step `pending` | the loop runs it: nothing had left |
| `model_call` `processing` | asked again; what its torn attempt had told is struck |
| `tool_call` `processing`, pure, idempotent | run again under the same key |
| `tool_call` `processing`, agent | its scope is resumed |
| `tool_call` `processing`, `once` | never again: it ends in doubt, and the model is told |
"""

from antiphon.domain.steps import StepKind, StepState
from antiphon.domain.tools import ToolEffect
from antiphon.engine.chain import LiveStep
from antiphon.engine.failures import in_doubt_error
from antiphon.engine.journal import RunJournal
from antiphon.engine.telling import tell_tool_end
from antiphon.observe.logs import get_logger
from antiphon.store.protocol import Store

log = get_logger("antiphon.recovery")


async def mend_chain(journal: RunJournal, store: Store) -> None:
    """Make every open step one that the loop may run, or end it. Written with the first boundary after."""
    open_steps = [step for step in journal.chain.steps() if not step.state.is_terminal]
    if not open_steps:
        return
    torn = await _torn_step(journal, store)
    for step in open_steps:
        match step.kind:
            case StepKind.MODEL_CALL:
                if step.state is StepState.PROCESSING:
                    journal.requeue(step.id)
                if step.id == torn:
                    log.info("attempt_struck", response_id=journal.response_id, step_id=step.id)
                    journal.strike(step.id)
            case StepKind.TOOL_CALL:
                await _mend_tool_call(journal, step)


async def _torn_step(journal: RunJournal, store: Store) -> str | None:
    """The step whose attempt the newest event in the log tells of.

    While a model answers nothing else is told, so the events of a torn attempt are the log's last.
    """
    if journal.next_sequence_number == 0:
        return None
    windows = await store.events(journal.response_id, journal.next_sequence_number - 2)
    return windows[-1].step_id if windows else None


async def _mend_tool_call(journal: RunJournal, step: LiveStep) -> None:
    if step.state is not StepState.PROCESSING:
        return
    if step.request.get("effect") != ToolEffect.ONCE:
        journal.requeue(step.id)
        return
    result = in_doubt_error(step.request["call_id"])
    log.warning("tool_in_doubt", response_id=journal.response_id, step_id=step.id, tool=step.request["name"])
    await journal.fail_step(step.id, {"code": result.error_code, "message": result.output})
    if step.parent is None:
        tell_tool_end(journal.narrator, step.request, result)
