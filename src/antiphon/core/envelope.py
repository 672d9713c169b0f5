"""The Response object as JSON: a static part encoded once per run, a few changing keys, and the output.

Every key of the schema is always there. What may be null is null when unknown, what may not has the
wire's default (WIRE: "The Response object").
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.domain.requests import FrozenRequest
from antiphon.domain.usage import Usage

encode = msgspec.json.encode


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a response that changes while it runs."""

    status: str = "in_progress"
    completed_at: int | None = None
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, Any] | None = None
    usage: Usage | None = None


def envelope(response_id: str, static: bytes, outcome: Outcome) -> bytes:
    """The JSON object of a response without its `output`."""
    changing = encode(outcome)
    return b'{"id":"%b","object":"response",%b,%b}' % (response_id.encode(), changing[1:-1], static)


def with_output(envelope_json: bytes, output: bytes) -> bytes:
    """The whole JSON object: the envelope and the output (a JSON array)."""
    return b'%b,"output":%b}' % (envelope_json[:-1], output)


def joined(items: Sequence[bytes]) -> bytes:
    """Encoded items as one JSON array."""
    return b"[%b]" % b",".join(items)


def static_part(frozen: FrozenRequest) -> bytes:
    """The keys that stay as they are from admission to the end, encoded, without braces."""
    request = frozen.request
    reasoning = request.reasoning
    text = dict(request.text or {})
    text["format"] = text.get("format") or {"type": "text"}
    if text.get("verbosity", "") is None:
        del text["verbosity"]
    static: dict[str, Any] = {
        "created_at": int(frozen.created_at),
        "model": request.model,
        "previous_response_id": request.previous_response_id,
        "instructions": request.instructions,
        "tools": [_echoed_tool(tool) for tool in request.tools],
        "tool_choice": request.tool_choice,
        "truncation": request.truncation,
        "parallel_tool_calls": request.parallel_tool_calls,
        "text": text,
        "temperature": _number(request.temperature, 1.0),
        "top_p": _number(request.top_p, 1.0),
        "presence_penalty": _number(request.presence_penalty, 0.0),
        "frequency_penalty": _number(request.frequency_penalty, 0.0),
        "top_logprobs": request.top_logprobs or 0,
        "reasoning": None
        if reasoning is None
        else {**reasoning, "effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "store": request.store,
        "background": request.background,
        "service_tier": request.service_tier if request.service_tier not in {None, "auto"} else "default",
        "metadata": request.metadata,
        "safety_identifier": request.safety_identifier,
        "prompt_cache_key": request.prompt_cache_key,
        "user": request.user,
    }
    if request.user is None:
        del static["user"]
    if frozen.warnings:
        static["warnings"] = frozen.warnings
    return encode(static)[1:-1]


def _number(value: float | None, default: float) -> float:
    return default if value is None else value


def _echoed_tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        return tool
    return {"description": None, "parameters": None, "strict": True, **tool}
