"""A store of your own for `run_response_loop`: steps in a dict, and a transition of its own.

This is all that the loop needs (`MultiStepStore`). Keep `steps` in a database instead, and a response that
was cut off goes on when `run_response_loop` is called again with its id: it joins the chain where it stands.
`own_loop.py` drives it.
"""

import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import asdict, replace

from antiphon import (
    AppendSteps,
    ChainStep,
    Complete,
    Fail,
    NextAction,
    RecordedStep,
    StepAlreadyTerminal,
    StepDescriptor,
    StepKind,
    StepState,
    assemble_response,
)
from antiphon.core.context import output_of

Asked = dict[str, Any]


class DictStore:
    """Ask the model, run what it calls, ask again. `ask(agent_step)` gives what a scope's model is asked."""

    def __init__(self, ask: Callable[[ChainStep | None], Asked]) -> None:
        self.ask = ask
        self.steps: dict[str, ChainStep] = {}
        self.created_at = int(time.time())

    async def next_action_for(self, request_id: str, scope_parent: str | None) -> NextAction:
        chain = await self.list_chain(request_id, scope_parent)
        answer = next((step for step in reversed(chain) if step.kind is StepKind.MODEL_CALL), None)
        if answer is None or not answer.state.is_terminal:
            return self._model_call(chain, scope_parent, answer.ordinal if answer else 0)
        if answer.state is not StepState.COMPLETED:
            return Fail(answer.error)
        calls = [item for item in answer.response_payload["output"] if item["type"] == "function_call"]
        if not calls:
            return Complete({"status": "completed"})
        ended = {step.ordinal for step in chain if step.state.is_terminal}
        places = [(answer.ordinal + n, {**call, "item_id": call["id"]}) for n, call in enumerate(calls, 1)]
        to_run = [StepDescriptor(StepKind.TOOL_CALL, call, at) for at, call in places if at not in ended]
        after = answer.ordinal + 1 + len(calls)
        return AppendSteps(to_run) if to_run else self._model_call(chain, scope_parent, after)

    def _model_call(self, chain: list[ChainStep], scope: str | None, ordinal: int) -> AppendSteps:
        asked = self.ask(self.steps.get(scope or ""))
        request = {**asked, "input": [*asked["input"], *output_of(chain)]}
        return AppendSteps([StepDescriptor(StepKind.MODEL_CALL, request, ordinal)])

    async def record_step(
        self, request_id: str, scope_parent: str | None, prev_step: str | None, descriptor: StepDescriptor
    ) -> RecordedStep:
        step_id = f"{request_id}/{scope_parent or ''}/{descriptor.ordinal}"
        made = ChainStep(id=step_id, sequence=len(self.steps), state=StepState.PENDING, **asdict(descriptor),
                         prev_step_id=prev_step, parent_step_id=scope_parent)  # fmt: skip
        return RecordedStep(step_id, self.steps.setdefault(step_id, made).sequence)

    async def mark_step_processing(self, step_id: str) -> None:
        if self.steps[step_id].state is StepState.PENDING:
            self.steps[step_id] = replace(self.steps[step_id], state=StepState.PROCESSING)

    async def complete_step(self, step_id: str, response: Any) -> None:
        self._end(step_id, state=StepState.COMPLETED, response_payload=response)

    async def fail_step(self, step_id: str, error: Any) -> None:
        self._end(step_id, state=StepState.FAILED, error=error)

    def _end(self, step_id: str, **result: Any) -> None:
        if self.steps[step_id].state.is_terminal:
            raise StepAlreadyTerminal(step_id)
        self.steps[step_id] = replace(self.steps[step_id], **result)

    async def list_chain(self, request_id: str, scope_parent: str | None) -> list[ChainStep]:
        place = f"{request_id}/{scope_parent or ''}/"
        return [step for step in self.steps.values() if step.id == f"{place}{step.ordinal}"]

    async def assemble_response(self, request_id: str) -> Asked:
        output = output_of(await self.list_chain(request_id, None))
        known = {"created_at": self.created_at}
        return assemble_response(request_id, output, self.ask(None)["model"], known).to_dict()
