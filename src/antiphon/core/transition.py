"""The transition: from the chain of a scope to what comes next.

    next_action(rules, chain, spent) -> AppendSteps | Complete | Fail

The loop has no memory of its own. After every ended step, and after every crash, it shows the chain as
stored to this function and does what it says. That is why a response can go on anywhere, in any process:
whatever the loop must know is in the chain, and what is in the chain can be read here.

A chain is a row of turns. A turn is one `model_call` and the `tool_call`s that it asked for:

    empty ──────────────────────────────> model_call; an agent's: Complete(incomplete) when a budget is spent
    model_call open (pending, taken over) > the same model_call again
    model_call failed ──────────────────> Fail
    model_call answered
        no server-side calls ───────────> Complete
        some call without an ended step ─> those tool_calls, at fixed ordinals
        all calls ended
            the client has calls too ───> Complete, its calls open
            a budget is spent ──────────> Complete(incomplete)
            else ───────────────────────> model_call

Calls and tool steps are paired by `call_id`, never by order, and each tool step's ordinal follows from
its call's place in the answer: a crash in the middle of a fan-out finds the same places again.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from antiphon.domain.actions import AppendSteps, Complete, Fail, NextAction, StepDescriptor
from antiphon.domain.steps import ChainStep, StepKind, StepState
from antiphon.domain.usage import Usage

INCOMPLETE_BY_FINISH = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What a scope may do: the model's name, and the budgets of the run."""

    model: str
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has used, over all its scopes, and whether its working time is up."""

    tool_calls: int = 0
    usage: Usage = Usage()
    out_of_time: bool = False


class Turn(msgspec.Struct, frozen=True):
    """A model call and the tool calls that followed it."""

    model_call: ChainStep
    tool_calls: tuple[ChainStep, ...]


def turns_of(chain: Sequence[ChainStep]) -> list[Turn]:
    """The chain cut into turns."""
    starts = [i for i, step in enumerate(chain) if step.kind is StepKind.MODEL_CALL]
    borders = [*starts, len(chain)]
    return [Turn(chain[a], tuple(chain[a + 1 : b])) for a, b in pairwise(borders)]


def server_calls(model_call: ChainStep) -> list[dict[str, Any]]:
    """The calls of an answer that we run ourselves: those that carry a `server_label`."""
    output = (model_call.response_payload or {}).get("output", ())
    return [item for item in output if item["type"] == "function_call" and "server_label" in item]


def has_client_calls(model_call: ChainStep) -> bool:
    """True when the answer holds calls for the client."""
    output = (model_call.response_payload or {}).get("output", ())
    return any(item["type"] == "function_call" and "server_label" not in item for item in output)


def spent_on(steps: Sequence[ChainStep]) -> Spent:
    """What these steps, of any scopes of one run, have used."""
    usage = Usage()
    tool_calls = 0
    for step in steps:
        if step.kind is StepKind.TOOL_CALL:
            tool_calls += 1
        elif step.state is StepState.COMPLETED and (counted := step.response_payload.get("usage")):
            usage = usage + msgspec.convert(counted, Usage)
    return Spent(tool_calls=tool_calls, usage=usage)


def next_action(rules: Rules, chain: Sequence[ChainStep], spent: Spent) -> NextAction:
    """What comes next in one scope. Pure: the same chain gives the same answer."""
    if not chain:
        over = _over_budget(rules, spent) if spent.tool_calls else None  # an agent's scope, begun by a call
        return over or AppendSteps([_model_call(rules, 0)])
    turn = turns_of(chain)[-1]
    match turn.model_call.state:
        case StepState.PENDING | StepState.PROCESSING:
            return AppendSteps([_model_call(rules, turn.model_call.ordinal)])
        case StepState.FAILED | StepState.CANCELED:
            return Fail(
                turn.model_call.error or {"code": "cancelled", "message": "The model call was cancelled."}
            )
        case StepState.COMPLETED:
            return _after_answer(rules, turn, spent)


def _after_answer(rules: Rules, turn: Turn, spent: Spent) -> NextAction:
    answer = turn.model_call
    finish = answer.response_payload.get("finish_reason", "stop")
    calls = server_calls(answer)
    if reason := INCOMPLETE_BY_FINISH.get(finish):
        return _incomplete(reason)
    if not calls:
        return Complete({"status": "completed"})
    ended = {s.request_payload["call_id"] for s in turn.tool_calls if s.state.is_terminal}
    begun = {s.request_payload["call_id"] for s in turn.tool_calls}
    room = None if rules.max_tool_calls is None else rules.max_tool_calls - spent.tool_calls
    to_run: list[StepDescriptor] = []
    refused = 0
    for place, call in enumerate(calls):
        if call["call_id"] in ended:
            continue
        if call["call_id"] not in begun:
            if room is not None and room <= 0:
                refused += 1
                continue
            room = None if room is None else room - 1
        to_run.append(StepDescriptor(StepKind.TOOL_CALL, _tool_payload(call), answer.ordinal + 1 + place))
    if spent.out_of_time and (to_run or refused):
        return _incomplete("max_wall_time")
    if to_run:
        return AppendSteps(to_run)
    if refused:
        return _incomplete("max_tool_calls")
    if has_client_calls(answer):
        return Complete({"status": "completed"})
    return _over_budget(rules, spent) or AppendSteps([_model_call(rules, answer.ordinal + 1 + len(calls))])


def _over_budget(rules: Rules, spent: Spent) -> Complete | None:
    if spent.out_of_time:
        return _incomplete("max_wall_time")
    if rules.max_output_tokens is not None and spent.usage.output_tokens >= rules.max_output_tokens:
        return _incomplete("max_output_tokens")
    return None


def _incomplete(reason: str) -> Complete:
    return Complete({"status": "incomplete", "incomplete_details": {"reason": reason}})


def _model_call(rules: Rules, ordinal: int) -> StepDescriptor:
    return StepDescriptor(StepKind.MODEL_CALL, {"model": rules.model}, ordinal)


def _tool_payload(call: dict[str, Any]) -> dict[str, Any]:
    return {
        "item_id": call["id"],
        "call_id": call["call_id"],
        "name": call["name"],
        "arguments": call["arguments"],
        "server_label": call["server_label"],
        "effect": call.get("effect", "once"),
        "output_index": call.get("output_index"),
    }
