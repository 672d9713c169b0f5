"""Chains made by hand, for the transition to be asked what comes next."""

from typing import Any

from msgspec.structs import replace

from antiphon import ChainStep, StepKind, StepState, Usage

RUN = "run_1"


def model_call(ordinal: int, state: StepState = StepState.PENDING, **fields: Any) -> ChainStep:
    """A model call at this place."""
    return ChainStep(
        id=f"step_{ordinal}",
        kind=StepKind.MODEL_CALL,
        state=state,
        sequence=ordinal,
        ordinal=ordinal,
        request_payload={"model": "m"},
        **fields,
    )


def call(call_id: str, *, ours: bool = True, name: str = "look", arguments: str = "{}") -> dict[str, Any]:
    """A call in an answer: of ours with a label, of the client without."""
    item = {
        "id": f"fc_{call_id}",
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }
    return {**item, "server_label": "antiphon", "effect": "pure", "output_index": 0} if ours else item


def message(text: str = "said") -> dict[str, Any]:
    """A message in an answer."""
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {
        "id": f"msg_{text}",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": content,
    }


def answered(ordinal: int, *items: dict[str, Any], finish: str = "stop", output_tokens: int = 1) -> ChainStep:
    """A model call that has ended with these items."""
    usage = {"input_tokens": 1, "output_tokens": output_tokens, "total_tokens": 1 + output_tokens}
    payload = {"output": list(items), "finish_reason": finish, "usage": usage, "model": "m"}
    return model_call(ordinal, StepState.COMPLETED, response_payload=payload)


def tool_call(ordinal: int, call_id: str, state: StepState = StepState.COMPLETED) -> ChainStep:
    """The tool step of this call."""
    step = ChainStep(
        id=f"step_{ordinal}",
        kind=StepKind.TOOL_CALL,
        state=state,
        sequence=ordinal,
        ordinal=ordinal,
        request_payload={"call_id": call_id, "name": "look", "arguments": "{}"},
    )
    match state:
        case StepState.COMPLETED:
            return replace(step, response_payload={"output": f"result of {call_id}"})
        case StepState.FAILED:
            return replace(step, error={"code": "tool_execution_error", "message": f"no {call_id}"})
        case _:
            return step


__all__ = ["RUN", "Usage", "answered", "call", "message", "model_call", "tool_call"]
