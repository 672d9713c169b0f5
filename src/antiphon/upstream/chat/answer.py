"""What a chat-completions server answers, as inference events.

`StreamedAnswer` takes the data of one server-sent event after another, `whole_answer` a complete JSON
body; both give the same events. Pure, and on the hot path: a text delta costs about a microsecond.

`<think>` tags in text are left alone: they are the model's text until its server says otherwise.
"""

from typing import Any

from antiphon.domain.errors import UpstreamBrokenError
from antiphon.domain.inference import (
    InferenceEvent,
    InferenceFinished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from antiphon.domain.usage import InputTokensDetails, OutputTokensDetails, Usage
from antiphon.upstream.chat.calls import CallNumbering
from antiphon.upstream.chat.chunks import CallPiece, ChatUsage, Delta, chunk_of

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


class StreamedAnswer:
    """Folds the data of server-sent events into inference events. One instance per stream.

    `done` is true after `[DONE]`; `has_finish_reason` says that nothing but usage can still follow.
    """

    __slots__ = ("_calls", "_finish_reason", "_has_spoken", "_model", "_usage", "done")

    def __init__(self) -> None:
        self.done = False
        self._calls = CallNumbering()
        self._finish_reason: str | None = None
        self._has_spoken = False
        self._model: str | None = None
        self._usage: ChatUsage | None = None

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
            try:
                chunk = chunk_of(payload)
            except UpstreamBrokenError:
                if self._finish_reason is None:
                    raise
                # The answer is whole; what goes wrong behind it cannot take it back.
                self.done = True
                break
            if chunk.model:
                self._model = chunk.model
            if chunk.usage is not None:
                self._usage = chunk.usage
            for choice in chunk.choices or ():
                if choice.index:
                    continue
                if choice.delta is not None:
                    self._read(choice.delta, events)
                elif choice.message is not None and not self._has_spoken and not events:
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

    def _read(self, delta: Delta, events: list[InferenceEvent]) -> None:
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
            pieces = [*pieces, CallPiece(index=0, function=delta.function_call)]
        events.extend(call for piece in pieces if (call := self._calls.read(piece)) is not None)


def whole_answer(body: bytes) -> list[InferenceEvent]:
    """The events of a complete JSON answer, each part whole. Raises `UpstreamBrokenError`."""
    if not body.strip():
        raise UpstreamBrokenError("The model server sent an empty answer.")
    chunk = chunk_of(body)
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


def _read_reasoning(delta: Delta, events: list[InferenceEvent]) -> None:
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


def _usage(usage: ChatUsage | None) -> Usage | None:
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
