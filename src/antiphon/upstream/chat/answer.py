"""What a chat-completions server answers, as inference events.

`StreamedAnswer` takes the data of one server-sent event after another, `whole_answer` a complete JSON
body; both give the same events. Pure, and on the hot path: a text delta costs about a microsecond.

Servers differ in how they send tool calls. `index` may be missing, or be 0 for every call; calls may
come in pieces, whole, or interleaved; names may be repeated; the old `function_call` is still about.
`_Calls` brings all of that to one running number per call. `<think>` tags in text are left alone:
they are the model's text until its server says otherwise.
"""

from typing import Any

import msgspec

from antiphon.domain.errors import UpstreamBrokenError
from antiphon.domain.inference import (
    CallDelta,
    InferenceEvent,
    InferenceFinished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from antiphon.domain.usage import InputTokensDetails, OutputTokensDetails, Usage
from antiphon.upstream.chat.failures import hidden_error

_DONE = b"[DONE]"

_FINISH_REASONS = {
    "stop": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
# The server says itself that what it sent is not the whole answer.
_BROKEN_REASONS = frozenset({"abort", "aborted", "cancelled", "error"})


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _CallPiece(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    """A delta of a stream, or the message of a whole answer: the same fields."""

    content: str | list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | dict[str, Any] | None = None
    refusal: str | None = None
    tool_calls: list[_CallPiece] | None = None
    function_call: _Function | None = None


class _Choice(msgspec.Struct):
    index: int | None = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    model: str | None = None
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None


_Unreadable = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_decode = msgspec.json.Decoder(_Chunk).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder(order="deterministic").encode


class StreamedAnswer:
    """Folds the data of server-sent events into inference events. One instance per stream.

    `done` is true after `[DONE]`; `has_finish_reason` says that nothing but usage can still follow.
    """

    __slots__ = ("_calls", "_finish_reason", "_has_spoken", "_model", "_usage", "done")

    def __init__(self) -> None:
        self.done = False
        self._calls = _Calls()
        self._finish_reason: str | None = None
        self._has_spoken = False
        self._model: str | None = None
        self._usage: _Usage | None = None

    @property
    def has_finish_reason(self) -> bool:
        """The model has ended its answer."""
        return self._finish_reason is not None

    def feed(self, payloads: list[bytes]) -> list[InferenceEvent]:
        """The events in these payloads, in order. Raises `UpstreamBrokenError`."""
        events: list[InferenceEvent] = []
        for payload in payloads:
            if payload == _DONE:
                self.done = True
                break
            chunk = _chunk(payload)
            if chunk.model:
                self._model = chunk.model
            if chunk.usage is not None:
                self._usage = chunk.usage
            for choice in chunk.choices or ():
                if choice.index:
                    continue
                if choice.delta is not None:
                    self._read(choice.delta, events)
                elif choice.message is not None and not self._has_spoken:
                    # Under a stream this is a server that answers whole; after deltas it repeats them.
                    self._read(choice.message, events)
                if choice.finish_reason:
                    self._finish_reason = _known_reason(choice.finish_reason)
        if events:
            self._has_spoken = True
        return events

    def finished(self) -> InferenceFinished:
        """The last event. Raises `UpstreamBrokenError` when the model had not ended its answer.

        `[DONE]` without a finish reason counts as an end if anything at all was said.
        """
        reason = self._finish_reason or ("stop" if self.done and self._has_spoken else None)
        if reason is None:
            raise UpstreamBrokenError(
                "The model server's stream ended before the answer did.",
                hint="Look at the model server's log for this time.",
            )
        if reason == "stop" and self._calls:
            reason = "tool_calls"
        return InferenceFinished(reason, _usage(self._usage), self._model)

    def _read(self, delta: _Delta, events: list[InferenceEvent]) -> None:
        content = delta.content
        if content and isinstance(content, str) and delta.tool_calls is None:
            # Nearly every chunk of a long answer ends here.
            if delta.reasoning_content or delta.reasoning:
                _read_reasoning(delta, events)
            events.append(TextDelta(content))
            return
        _read_reasoning(delta, events)
        if isinstance(content, list):
            _read_parts(content, events)
        elif content:
            events.append(TextDelta(content))
        if delta.refusal:
            events.append(RefusalDelta(delta.refusal))
        pieces = delta.tool_calls or []
        if delta.function_call is not None:
            pieces = [*pieces, _CallPiece(index=0, function=delta.function_call)]
        events.extend(call for piece in pieces if (call := self._calls.read(piece)) is not None)


def whole_answer(body: bytes) -> list[InferenceEvent]:
    """The events of a complete JSON answer, each part whole. Raises `UpstreamBrokenError`."""
    if not body.strip():
        raise UpstreamBrokenError("The model server sent an empty answer.")
    chunk = _chunk(body)
    if not chunk.choices:
        raise UpstreamBrokenError("The model server's answer holds no choices.")
    choice = chunk.choices[0]
    if choice.message is None and choice.delta is None:
        raise UpstreamBrokenError("The model server's answer holds no message.")
    answer = StreamedAnswer()
    events = answer.feed([body])
    if not answer.has_finish_reason:
        # The document is whole, so the answer is; some servers leave the reason out.
        events.append(InferenceFinished("stop", _usage(chunk.usage), chunk.model))
    else:
        events.append(answer.finished())
    return events


def _chunk(payload: bytes) -> _Chunk:
    try:
        chunk = _decode(payload)
    except _Unreadable as error:
        raise _unreadable(payload, error) from None
    if chunk.error or chunk.object == "error" or (chunk.choices is None and chunk.usage is None):
        raise hidden_error(_decode_any(payload))
    return chunk


def _unreadable(payload: bytes, error: Exception) -> UpstreamBrokenError:
    """Not JSON, or JSON of another shape: an error in clothes of its own, or nothing we know."""
    try:
        value = _decode_any(payload)
    except _Unreadable:
        return UpstreamBrokenError("The model server sent what is not JSON.")
    if isinstance(value, dict) and (value.get("error") or value.get("object") == "error"):
        return hidden_error(value)
    return UpstreamBrokenError(f"The model server sent JSON that is no chat completion: {error}")


def _read_reasoning(delta: _Delta, events: list[InferenceEvent]) -> None:
    """Some servers send both names with the same text: the first one counts."""
    reasoning = delta.reasoning_content or delta.reasoning
    if reasoning and isinstance(reasoning, str):
        events.append(ReasoningDelta(reasoning))


def _read_parts(parts: list[Any], events: list[InferenceEvent]) -> None:
    """Content as a list of parts (Mistral's reasoning models)."""
    for part in parts:
        match part:
            case {"type": "text", "text": str() as text} if text:
                events.append(TextDelta(text))
            case {"type": "thinking", "thinking": list() as thoughts}:
                events.extend(
                    ReasoningDelta(str(thought["text"]))
                    for thought in thoughts
                    if isinstance(thought, dict) and thought.get("text")
                )


def _known_reason(reason: str) -> str:
    if reason in _BROKEN_REASONS:
        raise UpstreamBrokenError("The model server broke off its answer.")
    return _FINISH_REASONS.get(reason, "stop")


def _usage(usage: _Usage | None) -> Usage | None:
    if usage is None:
        return None
    asked, answered = usage.prompt_tokens or 0, usage.completion_tokens or 0
    cached = usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens
    reasoned = usage.completion_tokens_details and usage.completion_tokens_details.reasoning_tokens
    return Usage(
        input_tokens=asked,
        input_tokens_details=InputTokensDetails(cached_tokens=cached or 0),
        output_tokens=answered,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoned or 0),
        total_tokens=usage.total_tokens or asked + answered,
    )


class _Call:
    """A call as far as it has come."""

    __slots__ = ("arguments", "id", "name", "number")

    def __init__(self, number: int, call_id: str | None) -> None:
        self.number = number
        self.id = call_id
        self.name = ""
        self.arguments: list[str] = []

    def is_whole(self) -> bool:
        """Its arguments are a complete JSON object: what has a name now is another call."""
        try:
            return isinstance(_decode_any("".join(self.arguments)), dict)
        except msgspec.DecodeError:
            return False


class _Calls:
    """Which call a piece belongs to."""

    __slots__ = ("_at_index", "_calls")

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._at_index: dict[int, _Call] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def read(self, piece: _CallPiece) -> CallDelta | None:
        """The piece under its call's running number; None when it says nothing new."""
        function = piece.function
        name = (function and function.name) or ""
        arguments = _arguments(function)
        call = self._call_of(piece, name)
        if name:
            name = self._new_part_of_name(call, name)
            if not name and call.is_whole():
                return None
        call.name += name
        if arguments:
            call.arguments.append(arguments)
        return CallDelta(call.number, name, arguments) if name or arguments else None

    def _call_of(self, piece: _CallPiece, name: str) -> _Call:
        known = self._known(piece)
        if known is None or self._begins_another(known, piece, name):
            known = _Call(len(self._calls), piece.id or None)
            self._calls.append(known)
        if piece.index is not None:
            self._at_index[piece.index] = known
        if piece.id and known.id is None:
            known.id = piece.id
        return known

    def _known(self, piece: _CallPiece) -> _Call | None:
        if piece.index is not None:
            return self._at_index.get(piece.index)
        if piece.id:
            for call in self._calls:
                if call.id == piece.id:
                    return call
        return self._calls[-1] if self._calls else None

    @staticmethod
    def _begins_another(known: _Call, piece: _CallPiece, name: str) -> bool:
        """A name under a new id is a new call; without ids, a name after complete arguments is.

        An id alone is not enough: some servers make a new one for every piece.
        """
        if not name:
            return False
        if piece.id and known.id:
            return piece.id != known.id
        return known.is_whole()

    @staticmethod
    def _new_part_of_name(call: _Call, name: str) -> str:
        """Names may come in pieces before the arguments begin; later ones are repetitions."""
        return "" if call.arguments or call.name == name else name


def _arguments(function: _Function | None) -> str:
    given = function.arguments if function is not None else None
    if isinstance(given, dict):
        return _encode(given).decode()
    return given or ""
