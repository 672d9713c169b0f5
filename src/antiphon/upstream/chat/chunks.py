"""The JSON of chat-completions answers: chunks of a stream and whole completions, as far as we read it.

Decoding a text chunk takes well under a microsecond. Servers are forgiven wrong types where a meaning
can still be read; an error object in an answer's place raises `UpstreamBrokenError`. Pure.
"""

from contextlib import suppress
from typing import Any

import msgspec

from antiphon.domain.errors import UpstreamBrokenError
from antiphon.upstream.chat.failures import hidden_error


class FunctionPiece(msgspec.Struct, gc=False):
    """A called function, or a piece of it."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CallPiece(msgspec.Struct):
    """A tool call, or a piece of it."""

    index: int | None = None
    id: str | None = None
    function: FunctionPiece | None = None


class Delta(msgspec.Struct):
    """A delta of a stream, or the message of a whole answer: the same fields."""

    content: str | list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | dict[str, Any] | None = None
    refusal: str | None = None
    tool_calls: list[CallPiece] | None = None
    function_call: FunctionPiece | None = None


class Choice(msgspec.Struct):
    """One of the answers; ours is the first."""

    index: int | None = 0
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None


class TokenDetails(msgspec.Struct):
    """How tokens divide."""

    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class ChatUsage(msgspec.Struct):
    """Token counts."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None
    completion_tokens_details: TokenDetails | None = None


class Chunk(msgspec.Struct):
    """One chunk, or a whole completion."""

    choices: list[Choice] | None = None
    model: str | None = None
    usage: ChatUsage | None = None
    error: Any = None
    object: str | None = None


_Unreadable = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_decode = msgspec.json.Decoder(Chunk).decode
_decode_any = msgspec.json.Decoder().decode


def chunk_of(payload: bytes) -> Chunk:
    """The chunk in one event's data, or the completion in a body. Raises `UpstreamBrokenError`."""
    try:
        chunk = _decode(payload)
    except _Unreadable:
        chunk = _lenient_chunk(payload)
    if chunk.error or chunk.object == "error" or (chunk.choices is None and chunk.usage is None):
        raise hidden_error(_decode_any(payload))
    return chunk


def _lenient_chunk(payload: bytes) -> Chunk:
    """A chunk with a wrong type somewhere: numbers as strings are read, odd usage is left out."""
    try:
        value = _decode_any(payload)
    except _Unreadable:
        raise UpstreamBrokenError("The model server sent what is not JSON.") from None
    if isinstance(value, dict):
        if value.get("error") or value.get("object") == "error":
            raise hidden_error(value)
        without_usage = {name: given for name, given in value.items() if name != "usage"}
        for attempt in (value, without_usage):
            with suppress(msgspec.ValidationError):
                return msgspec.convert(attempt, Chunk, strict=False)
    raise UpstreamBrokenError("The model server sent JSON that is no chat completion.")
