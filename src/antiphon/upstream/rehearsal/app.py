"""The rehearsal model over HTTP, as an ASGI application.

`POST /v1/chat/completions` (streamed and not), `GET /v1/models`, `GET /health`. It is as strict as real
servers are: what they refuse is refused here, in the same form, so that a request which passes here has
a chance elsewhere. There is no language model in it; `owned_by` says so.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from antiphon.upstream.rehearsal.answering import Rehearsal, Reply

OWNED_BY = "antiphon rehearsal: not a language model"

_ARGUMENT_PIECE_CHARACTERS = 12
_ROLES = frozenset({"assistant", "developer", "system", "tool", "user"})

_encode = msgspec.json.Encoder().encode


def create_rehearsal_app(pace_s: float = 0.03) -> Starlette:
    """The application; `pace_s` is the time between two words of a streamed answer."""
    service = _Service(Rehearsal(pace_s))
    return Starlette(
        routes=[
            Route("/v1/chat/completions", service.complete, methods=["POST"]),
            Route("/v1/models", service.models, methods=["GET"]),
            Route("/health", service.health, methods=["GET"]),
        ]
    )


class _Refused(Exception):  # noqa: N818 - a refusal, in the server's own words
    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code


class _Service:
    def __init__(self, rehearsal: Rehearsal) -> None:
        self._rehearsal = rehearsal
        self._started_at = int(time.time())

    async def complete(self, request: Request) -> Response:
        """Answer a conversation."""
        try:
            body = _checked(await request.body(), self._rehearsal.models)
        except _Refused as refused:
            error = {
                "message": refused.message,
                "type": "invalid_request_error",
                "param": refused.param,
                "code": refused.code,
            }
            return _json({"error": error}, refused.status)
        reply = self._rehearsal.reply(body)
        head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": body["model"],
        }
        if not body.get("stream"):
            return _json(_completion(head, reply))
        wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return StreamingResponse(
            _stream(head, reply, wants_usage=wants_usage),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache"},
        )

    async def models(self, _request: Request) -> Response:
        """The names it answers to."""
        data = [
            {"id": name, "object": "model", "created": self._started_at, "owned_by": OWNED_BY}
            for name in self._rehearsal.models
        ]
        return _json({"object": "list", "data": data})

    async def health(self, _request: Request) -> Response:
        """It is there."""
        return _json({"status": "ok"})


def _checked(raw: bytes, models: tuple[str, ...]) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _Refused("The body is not valid JSON.") from None
    if not isinstance(body, dict):
        raise _Refused("The body must be a JSON object.")
    model = body.get("model")
    if not isinstance(model, str):
        raise _Refused("You must provide a model parameter.", param="model")
    if model not in models:
        raise _Refused(
            f"The model `{model}` does not exist.", status=404, param="model", code="model_not_found"
        )
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _Refused("'messages' must be an array with at least one message.", param="messages")
    _check_messages(messages)
    _check_tools(body)
    return body


def _check_messages(messages: list[Any]) -> None:
    """Roles are known, and the results of an assistant message's calls follow it directly, all of them."""
    awaited: set[str] = set()
    for at, message in enumerate(messages):
        param = f"messages[{at}]"
        if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
            raise _Refused("A message needs a known role.", param=f"{param}.role")
        if message["role"] == "tool":
            if message.get("tool_call_id") not in awaited:
                raise _Refused(
                    "A message with role 'tool' must answer a preceding message with 'tool_calls'.",
                    param=param,
                )
            awaited.discard(message["tool_call_id"])
            continue
        if awaited:
            raise _Refused(
                "An assistant message with 'tool_calls' must be followed by tool messages for each call; "
                f"missing: {', '.join(sorted(awaited))}",
                param=param,
            )
        try:
            awaited = {
                str(call["id"]) for call in message.get("tool_calls") or () if call["function"]["name"]
            }
        except (KeyError, TypeError):
            raise _Refused("A tool call needs an id and a function.", param=f"{param}.tool_calls") from None
        if message.get("content") is None and not awaited:
            raise _Refused("A message needs content or tool calls.", param=f"{param}.content")
    if awaited:
        raise _Refused("Tool calls at the end are not answered.", param="messages")


def _check_tools(body: Mapping[str, Any]) -> None:
    tools = body.get("tools")
    if tools is None:
        if body.get("tool_choice") not in (None, "none"):
            raise _Refused("'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice")
        return
    for at, tool in enumerate(tools if isinstance(tools, list) else [None]):
        match tool:
            case {"type": "function", "function": {"name": str()}}:
                continue
        raise _Refused("A tool needs a type and a function with a name.", param=f"tools[{at}]")


def _usage(reply: Reply) -> dict[str, Any]:
    """Words instead of tokens."""
    return {
        "prompt_tokens": reply.prompt_words,
        "completion_tokens": reply.answer_words,
        "total_tokens": reply.prompt_words + reply.answer_words,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _completion(head: dict[str, Any], reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": _call_id(),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in reply.calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason, "logprobs": None}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": _usage(reply)}


async def _stream(head: dict[str, Any], reply: Reply, *, wants_usage: bool) -> AsyncIterator[bytes]:
    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return _event({**head, "object": "chat.completion.chunk", "choices": [choice]})

    yield chunk({"role": "assistant", "content": None if reply.calls else ""})
    for piece in reply.pieces:
        if reply.pace_s > 0:
            await asyncio.sleep(reply.pace_s)
        yield chunk({"content": piece})
    for index, call in enumerate(reply.calls):
        opening = {"name": call.name, "arguments": ""}
        yield chunk(
            {"tool_calls": [{"index": index, "id": _call_id(), "type": "function", "function": opening}]}
        )
        for at in range(0, len(call.arguments), _ARGUMENT_PIECE_CHARACTERS):
            part = call.arguments[at : at + _ARGUMENT_PIECE_CHARACTERS]
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    yield chunk({}, reply.finish_reason)
    if wants_usage:
        yield _event({**head, "object": "chat.completion.chunk", "choices": [], "usage": _usage(reply)})
    yield b"data: [DONE]\n\n"


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + _encode(value) + b"\n\n"


def _json(value: dict[str, Any], status: int = 200) -> Response:
    return Response(_encode(value), status, media_type="application/json")
