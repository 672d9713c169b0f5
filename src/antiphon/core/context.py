"""From a chain to items: what a response has put out, and what its next model call is asked.

The output of a scope is its answers in order, each server-side call shown as the `mcp_call` item that
clients see, holding its result once there is one. The same items are what the model is given next, so
that a later turn, which reads them back as history, repeats the very same messages.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.core.transition import server_calls, turns_of
from antiphon.domain.steps import ChainStep, StepState

JSONObject = dict[str, Any]


def output_of(chain: Sequence[ChainStep], *, not_run: str | None = None) -> list[JSONObject]:
    """The items that a scope has put out so far, in order.

    Calls without an ended step are shown as open; with `not_run` (a reason) as never run, so that the
    next turn is valid.
    """
    output: list[JSONObject] = []
    for turn in turns_of(chain):
        if turn.model_call.state is not StepState.COMPLETED:
            continue
        results = {s.request_payload["call_id"]: s for s in turn.tool_calls}
        for item in turn.model_call.response_payload["output"]:
            if item["type"] == "function_call" and "server_label" in item:
                output.append(mcp_call(item, results.get(item["call_id"]), not_run=not_run))
            else:
                output.append(item)
    return output


def mcp_call(
    call: Mapping[str, Any], step: ChainStep | None = None, *, not_run: str | None = None
) -> JSONObject:
    """A server-side call as clients see it, with the result of its step when there is one."""
    output: str | None = None
    error: JSONObject | None = None
    status = "in_progress"
    if step is not None and step.state is StepState.COMPLETED:
        output, status = step.response_payload["output"], "completed"
    elif step is not None and step.state is StepState.FAILED:
        error, status = execution_error(step.error["message"]), "failed"
    elif not_run is not None:
        output, status = f"not run: {not_run}", "incomplete"
    return {
        "id": call["id"],
        "type": "mcp_call",
        "server_label": call["server_label"],
        "name": call["name"],
        "arguments": call["arguments"],
        "output": output,
        "error": error,
        "approval_request_id": None,
        "status": status,
    }


def execution_error(message: str) -> JSONObject:
    """A tool's failure as the wire has it."""
    return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": message}]}


def text_of(items: Sequence[Mapping[str, Any]]) -> str:
    """All output text of these items, joined."""
    return "".join(
        part["text"]
        for item in items
        if item["type"] == "message"
        for part in item["content"]
        if part["type"] == "output_text"
    )


def forced_choice_met(chain: Sequence[ChainStep]) -> bool:
    """True once an answer has called a server-side tool: a forced `tool_choice` gives way to `auto`."""
    return any(server_calls(turn.model_call) for turn in turns_of(chain))
