"""Assembly: one model answer, from the pieces of an inference client to items and wire events.

An `Answer` is fed `InferenceEvent`s in any interleaving that upstreams produce, and keeps two books at
once: the items (what is stored and given to the model again) and, through a `Narrator`, the events.

- Reasoning is closed before text opens; text is closed before a call opens; text after calls opens a
  new message: text and calls of one answer are both kept, in order.
- A call opens once its name is whole (its first piece of arguments, or the end). Pieces of several
  calls may interleave; each call has its own item id, call id and output index.
- Which calls are ours is asked of `Calling`. Ours are told as `mcp_call` items and stay open until their
  tool has ended; the client's are told as `function_call` items, whose ends `close` tells: the caller
  writes the answer down together with those events, so that a client never acts on a call that may
  still be taken back.
- What comes after a client's call is held back and told by `close`, each item whole before the next:
  clients such as LangChain and LlamaIndex count on one call being told at a time.
- A call that the request does not allow (`tool_choice`, `allowed_tools`, `parallel_tool_calls`) is
  dropped, whatever the model does.

Ids are made from the step, the attempt and a running number (`domain.ids`).
"""

from collections.abc import Callable
from typing import Any, assert_never

import msgspec

from antiphon.core.context import mcp_call
from antiphon.core.narration import Narrator
from antiphon.domain.ids import call_id_of, made_id
from antiphon.domain.inference import (
    CallDelta,
    InferenceEvent,
    InferenceFinished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)

encode = msgspec.json.encode
JSONObject = dict[str, Any]

STATUS_OF_FINISH = {"length": "incomplete", "content_filter": "incomplete"}


class Calling(msgspec.Struct, frozen=True, kw_only=True):
    """Which calls a model may make, and whose they are.

    `label_of` gives the server label of a call that we run, None for the client's. `allowed` are the
    names that may be called (None: any); `most` is the number of calls in one answer (None: any).
    `effect_of` is kept with the call, so that a recovery knows it without asking the tool.
    """

    label_of: Callable[[str], str | None] = lambda _name: None
    effect_of: Callable[[str], str] = lambda _name: "once"
    allowed: frozenset[str] | None = None
    most: int | None = None

    def permits(self, name: str, before: int) -> bool:
        """True when one more call of this name may be made after `before` others."""
        return (self.most is None or before < self.most) and (self.allowed is None or name in self.allowed)


class _Part:
    """The open content part of a message or reasoning item."""

    __slots__ = ("kind", "pieces", "prefix")

    def __init__(self, kind: str, prefix: bytes) -> None:
        self.kind = kind
        self.prefix = prefix
        self.pieces: list[str] = []


class _OpenItem:
    """A message or reasoning item that is being filled."""

    __slots__ = ("content", "id", "index", "kind", "part")

    def __init__(self, item_id: str, kind: str, index: int) -> None:
        self.id = item_id
        self.kind = kind
        self.index = index
        self.content: list[JSONObject] = []
        self.part: _Part | None = None


class _Call:
    """A call that is being filled; `item` is there once it has been opened."""

    __slots__ = ("arguments", "index", "item", "name", "refused", "streamed")

    def __init__(self) -> None:
        self.name = ""
        self.arguments: list[str] = []
        self.index = -1
        self.item: JSONObject | None = None
        self.refused = False
        self.streamed = 0


_TEXT_PART = {
    "output_text": ("response.output_text", b',"logprobs":[]', "text"),
    "refusal": ("response.refusal", b"", "refusal"),
    "reasoning_text": ("response.reasoning_text", b"", "text"),
}


class Answer:
    """One attempt at one model call."""

    def __init__(self, narrator: Narrator, stem: str, *, calling: Calling, deltas: bool = True) -> None:
        self._narrator = narrator
        self._stem = stem
        self._calling = calling
        self._deltas = deltas
        self._made = 0
        self._items: list[tuple[int, JSONObject]] = []
        self._open: _OpenItem | None = None
        self._calls: dict[int, _Call] = {}
        self._telling: _Call | None = None
        self._held: list[InferenceEvent] = []
        self._closing = False
        self._finished: InferenceFinished | None = None
        self.dropped: list[str] = []

    def feed(self, event: InferenceEvent) -> None:
        """Take one piece, now or, when a client's call is being told, at the close."""
        if self._telling is None or self._goes_on(event):
            self._take(event)
        else:
            self._held.append(event)

    def _goes_on(self, event: InferenceEvent) -> bool:
        """True for what may be told while a client's call is open: its own pieces, and the end."""
        if isinstance(event, CallDelta):
            return self._calls.get(event.index) is self._telling
        return isinstance(event, InferenceFinished)

    def _take(self, event: InferenceEvent) -> None:
        match event:
            case TextDelta(text):
                self._text("message", "output_text", text)
            case ReasoningDelta(text):
                self._text("reasoning", "reasoning_text", text)
            case RefusalDelta(text):
                self._text("message", "refusal", text)
            case CallDelta():
                self._call(event)
            case InferenceFinished():
                self._finished = event
            case _:
                assert_never(event)

    def close(self) -> JSONObject:
        """Close every open item and give the payload of the completed step.

        `{"output": [...], "finish_reason", "usage", "model"}`; calls of ours carry `server_label`,
        `effect` and `output_index`. The events of the closing belong in one commit with that payload.
        """
        finished = self._finished or InferenceFinished()
        status = STATUS_OF_FINISH.get(finished.finish_reason, "completed")
        self._closing = True
        for held in _in_turn(self._held):
            self._take(held)
        for call in self._calls.values():
            if call.item is None:
                self._open_call(call)
        places = [index for index, _ in self._items] + [call.index for call in self._calls.values()]
        last = max(places, default=-1)
        if self._open is not None:
            last = max(last, self._open.index)
            self._close_item(status if self._open.index == last else "completed")
        for call in self._calls.values():
            if call.item is not None:
                self._close_call(call, status if call.index == last else "completed")
        self._items.sort(key=lambda placed: placed[0])
        return {
            "output": [item for _, item in self._items],
            "finish_reason": finished.finish_reason,
            "usage": None if finished.usage is None else msgspec.to_builtins(finished.usage),
            "model": finished.model,
        }

    def _new_id(self, prefix: str) -> str:
        made = made_id(prefix, self._stem, self._made)
        self._made += 1
        return made

    def _text(self, item_kind: str, part_kind: str, text: str) -> None:
        item = self._open
        if item is None or item.kind != item_kind:
            if not text:
                return
            item = self._open_item(item_kind)
        part = item.part
        if part is None or part.kind != part_kind:
            self._close_part(item)
            part = self._open_part(item, part_kind)
        part.pieces.append(text)
        if self._deltas and self._narrator.listening and text:
            event, extra, _ = _TEXT_PART[part_kind]
            self._narrator.say(event + ".delta", b'%b,"delta":%b%b' % (part.prefix, encode(text), extra))

    def _open_item(self, kind: str) -> _OpenItem:
        self._close_open()
        prefix = "msg" if kind == "message" else "rs"
        item = _OpenItem(self._new_id(prefix), kind, self._narrator.take_output_index())
        self._open = item
        self._narrator.item_added(item.index, _shell(item, "in_progress"))
        return item

    def _open_part(self, item: _OpenItem, kind: str) -> _Part:
        place = b'"item_id":"%b","output_index":%d,"content_index":%d' % (
            item.id.encode(),
            item.index,
            len(item.content),
        )
        item.part = part = _Part(kind, place)
        self._narrator.say("response.content_part.added", b'%b,"part":%b' % (place, encode(_part(kind, ""))))
        return part

    def _close_part(self, item: _OpenItem) -> None:
        part = item.part
        if part is None:
            return
        item.part = None
        text = "".join(part.pieces)
        whole = _part(part.kind, text)
        event, extra, key = _TEXT_PART[part.kind]
        if self._narrator.listening:
            body = b'%b,"%b":%b%b' % (part.prefix, key.encode(), encode(text), extra)
            self._narrator.say(event + ".done", body)
            self._narrator.say("response.content_part.done", b'%b,"part":%b' % (part.prefix, encode(whole)))
        item.content.append(whole)

    def _close_open(self) -> None:
        """Close what must be closed before the next item opens."""
        self._close_item("completed")
        if self._telling is not None:
            self._close_call(self._telling, "completed")
            self._telling = None

    def _close_item(self, status: str) -> None:
        item = self._open
        if item is None:
            return
        self._close_part(item)
        self._open = None
        done = _shell(item, status)
        self._narrator.item_done(item.index, done)
        self._items.append((item.index, done))

    def _call(self, delta: CallDelta) -> None:
        call = self._calls.get(delta.index)
        if call is None:
            call = self._calls[delta.index] = _Call()
        call.name += delta.name if call.item is None else ""
        if not delta.arguments:
            return
        call.arguments.append(delta.arguments)
        if call.item is None:
            self._open_call(call)
        elif self._deltas:
            self._tell_arguments(call)

    def _open_call(self, call: _Call) -> None:
        if call.refused:
            return
        opened = sum(1 for other in self._calls.values() if other.item is not None)
        if not call.name or not self._calling.permits(call.name, opened):
            call.refused = True
            self.dropped.append(call.name)
            return
        self._close_open()
        label = self._calling.label_of(call.name)
        item_id = self._new_id("fc" if label is None else "mcp")
        call.index = self._narrator.take_output_index()
        item: JSONObject = {
            "id": item_id,
            "type": "function_call",
            "call_id": call_id_of(item_id),
            "name": call.name,
            "arguments": "",
            "status": "in_progress",
        }
        call.item = item
        if label is None or self._closing:
            self._telling = call
        if label is None:
            self._narrator.item_added(call.index, item)
        else:
            item["server_label"] = label
            item["effect"] = self._calling.effect_of(call.name)
            item["output_index"] = call.index
            self._narrator.item_added(call.index, mcp_call(item))
            self._narrator.item_event("response.mcp_call.in_progress", item_id, call.index)
        if self._deltas:
            self._tell_arguments(call)

    def _tell_arguments(self, call: _Call) -> None:
        if call.item is None or not self._narrator.listening:
            return
        fresh = "".join(call.arguments[call.streamed :])
        call.streamed = len(call.arguments)
        if fresh:
            self._narrator.item_event(
                _arguments_event(call.item) + ".delta",
                call.item["id"],
                call.index,
                b'"delta":' + encode(fresh),
            )

    def _close_call(self, call: _Call, status: str) -> None:
        item = call.item
        if item is None or item["status"] != "in_progress":
            return
        item["arguments"] = "".join(call.arguments)
        item["status"] = status
        rest = b'"arguments":' + encode(item["arguments"])
        if "server_label" not in item:
            rest = b'"name":%b,%b' % (encode(call.name), rest)
        self._narrator.item_event(_arguments_event(item) + ".done", item["id"], call.index, rest)
        if "server_label" not in item:
            self._narrator.item_done(call.index, item)
        self._items.append((call.index, item))


def _in_turn(held: list[InferenceEvent]) -> list[InferenceEvent]:
    """The pieces in order, but those of one call together, where the first of them stood."""
    turns: dict[tuple[str, int], list[InferenceEvent]] = {}
    for place, event in enumerate(held):
        turn = ("call", event.index) if isinstance(event, CallDelta) else ("text", place)
        turns.setdefault(turn, []).append(event)
    return [event for pieces in turns.values() for event in pieces]


def _arguments_event(item: JSONObject) -> str:
    return "response.mcp_call_arguments" if "server_label" in item else "response.function_call_arguments"


def _part(kind: str, text: str) -> JSONObject:
    match kind:
        case "output_text":
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        case "refusal":
            return {"type": "refusal", "refusal": text}
        case _:
            return {"type": kind, "text": text}


def _shell(item: _OpenItem, status: str) -> JSONObject:
    if item.kind == "message":
        return {
            "id": item.id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": list(item.content),
        }
    shell: JSONObject = {"id": item.id, "type": "reasoning", "status": status, "summary": []}
    if item.content:
        shell["content"] = list(item.content)
    return shell
