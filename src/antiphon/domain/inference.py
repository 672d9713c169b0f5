"""One model call, as values: what is asked, what arrives piece by piece, what it amounts to."""

from typing import Any

import msgspec

from antiphon.domain.tools import ToolCall
from antiphon.domain.usage import Usage


class Item(msgspec.Struct, frozen=True):
    """One item of a conversation: its id and its JSON object as on the wire."""

    id: str
    data: dict[str, Any]


class Conversation(msgspec.Struct, frozen=True):
    """The turns before this one, in order, and the metadata of the last of them."""

    id: str | None = None
    history: tuple[Item, ...] = ()
    metadata: dict[str, str] = msgspec.field(default_factory=dict)


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is asked.

    `input` are items as on the wire (JSON objects), the whole context in order. `tools` are
    Responses function tools (`{"type": "function", "name", "description", "parameters", "strict"}`).
    `params` are the remaining Responses parameters (`temperature`, `max_output_tokens`, `tool_choice`,
    `text`, `reasoning`, …); a client drops `None` and passes on names that it does not know.
    `idempotency_key` names the step; it is sent so that a server that knows such keys may use it.
    """

    model: str
    input: list[dict[str, Any]]
    instructions: str | None = None
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    stream: bool = False
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    idempotency_key: str | None = None


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """More of the answer's text. In a collected answer the whole of it."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    """More of the model's raw reasoning."""

    text: str


class RefusalDelta(msgspec.Struct, frozen=True, gc=False):
    """More of a refusal."""

    text: str


class CallDelta(msgspec.Struct, frozen=True, gc=False):
    """More of the call at `index`: a piece of its name, a piece of its arguments, or both.

    Pieces of several calls may interleave; `index` keeps them apart.
    """

    index: int
    name: str = ""
    arguments: str = ""


class InferenceFinished(msgspec.Struct, frozen=True):
    """The answer is whole. `finish_reason`: `stop`, `length`, `tool_calls`, `content_filter`."""

    finish_reason: str = "stop"
    usage: Usage | None = None
    model: str | None = None


InferenceEvent = TextDelta | ReasoningDelta | RefusalDelta | CallDelta | InferenceFinished


class InferenceResult(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer: wire items (calls as `function_call`), the calls among them, and the usage."""

    output: list[dict[str, Any]]
    tool_calls: list[ToolCall]
    usage: Usage | None = None
    finish_reason: str = "stop"
    model: str | None = None
