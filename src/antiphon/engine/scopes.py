"""The scopes of a run: what may come next in each, and what its models are asked.

The top level works from the frozen request; the inside of an agent's tool call from the agent's own
model, instructions and tools, with the call's arguments as its input. Budgets are the run's.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from antiphon.core.context import forced_choice_met, output_of
from antiphon.core.transition import Rules, Spent, next_action, spent_on
from antiphon.domain.actions import AppendSteps, NextAction, StepDescriptor
from antiphon.domain.inference import InferenceRequest
from antiphon.domain.requests import FrozenRequest
from antiphon.domain.steps import ChainStep, StepId, StepKind
from antiphon.domain.tools import ToolSchema
from antiphon.engine.chain import RunChain

PASSED_ON = (
    "temperature", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs", "text", "reasoning",
    "service_tier", "safety_identifier", "prompt_cache_key", "user",
)  # fmt: skip


class Scopes:
    """Decides for each scope of one run. Holds the history, which nothing else needs."""

    def __init__(
        self,
        frozen: FrozenRequest,
        history: Sequence[dict[str, Any]],
        *,
        out_of_time: Callable[[], bool] = lambda: False,
    ) -> None:
        self._frozen = frozen
        self._history = list(history)
        self._out_of_time = out_of_time
        self._schemas = {schema.name: schema for schema in frozen.server_tools}

    def next_action(self, chain: RunChain, scope: StepId | None) -> NextAction:
        """What comes next; a model call carries the whole `InferenceRequest`."""
        steps = chain.scope(scope)
        spent = spent_on(chain.views())
        if self._out_of_time():
            spent = msgspec.structs.replace(spent, out_of_time=True)
        agent = None if scope is None else self._agent_of(chain, scope)
        request = self._frozen.request
        rules = Rules(
            model=request.model if agent is None else self._model_of(agent),
            max_output_tokens=request.max_output_tokens,
            max_tool_calls=request.max_tool_calls,
        )
        action = next_action(rules, steps, spent)
        if not isinstance(action, AppendSteps) or action.steps[0].kind is not StepKind.MODEL_CALL:
            return action
        asked = (
            self._top_request(steps, spent)
            if agent is None or scope is None
            else self._agent_request(agent, chain.get(scope).request, steps, spent)
        )
        return AppendSteps([StepDescriptor(StepKind.MODEL_CALL, asked, action.steps[0].ordinal)])

    def _top_request(self, steps: Sequence[ChainStep], spent: Spent) -> InferenceRequest:
        request = self._frozen.request
        tools = [schema.as_function_tool() for schema in self._frozen.server_tools]
        tools += self._frozen.client_tools
        params: dict[str, Any] = {
            name: value for name in PASSED_ON if (value := getattr(request, name)) is not None
        }
        if tools:
            choice = request.tool_choice
            if choice != "none" and forced_choice_met(steps) and not _is_allowed_list(choice):
                choice = "auto"
            params["tool_choice"] = _as_function_choice(choice)
            params["parallel_tool_calls"] = request.parallel_tool_calls
        if request.max_output_tokens is not None:
            params["max_output_tokens"] = _left(request.max_output_tokens, spent)
        return InferenceRequest(
            model=request.model,
            input=self._history + output_of(steps),
            instructions=request.instructions,
            tools=tools,
            stream=request.stream or request.background,
            params=params,
        )

    def _agent_request(
        self, agent: ToolSchema, call: dict[str, Any], steps: Sequence[ChainStep], spent: Spent
    ) -> InferenceRequest:
        inside = agent.agent or {}
        names = inside.get("tools") or ()
        limit = self._frozen.request.max_output_tokens
        return InferenceRequest(
            model=self._model_of(agent),
            input=[_as_user_message(call["arguments"]), *output_of(steps)],
            instructions=inside.get("instructions"),
            tools=[self._schemas[name].as_function_tool() for name in names if name in self._schemas],
            params={} if limit is None else {"max_output_tokens": _left(limit, spent)},
        )

    def _agent_of(self, chain: RunChain, scope: StepId) -> ToolSchema:
        return self._schemas[chain.get(scope).request["name"]]

    def _model_of(self, agent: ToolSchema) -> str:
        return str((agent.agent or {}).get("model") or self._frozen.request.model)


def _left(most: int, spent: Spent) -> int:
    """What is left of the budget, one at least: a sibling may have spent it since the call was decided on."""
    return max(1, most - spent.usage.output_tokens)


def _as_function_choice(choice: Any) -> Any:
    """To a model our own tools are functions like any other."""
    if isinstance(choice, dict) and choice.get("type") == "mcp":
        return {"type": "function", "name": choice["name"]}
    return choice


def _is_allowed_list(choice: Any) -> bool:
    return isinstance(choice, dict) and choice.get("type") == "allowed_tools"


def _as_user_message(arguments: str) -> dict[str, Any]:
    """The input of an agent: its one text argument when that is all there is, else the JSON as it came."""
    try:
        decoded = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        decoded = None
    text = arguments
    if isinstance(decoded, dict) and len(decoded) == 1:
        (only,) = decoded.values()
        text = only if isinstance(only, str) else arguments
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
