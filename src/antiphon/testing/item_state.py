"""One output item of a stream, from `output_item.added` to `output_item.done`.

Each method takes an event of the item and yields what is wrong with it. An item that was met in the
middle of its life (a replay from a cursor) has an unknown beginning: what it says at its end need only
end with what was seen.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import msgspec

from antiphon.testing.response_rules import ITEM_RULES, Kinds, check_item, check_part

JSONObject: TypeAlias = dict[str, Any]
Event: TypeAlias = Mapping[str, Any]

_INDEX_KEY = {"content": "content_index", "summary": "summary_index"}
_PART_KINDS = {
    ("message", "content"): {"output_text", "refusal"},
    ("reasoning", "content"): {"reasoning_text"},
    ("reasoning", "summary"): {"summary_text"},
}
_TEXT_KEY = {"output_text": "text", "refusal": "refusal", "reasoning_text": "text", "summary_text": "text"}
_ARGUMENTS_KEY = {"function_call": "arguments", "mcp_call": "arguments", "custom_tool_call": "input"}


class TextRun:
    """A text that comes in pieces and is then told whole."""

    __slots__ = ("deltas_optional", "from_start", "pieces", "whole")

    def __init__(self, *, from_start: bool, deltas_optional: bool) -> None:
        self.pieces: list[str] = []
        self.whole: str | None = None
        self.from_start = from_start
        self.deltas_optional = deltas_optional

    def add(self, piece: str) -> Iterator[str]:
        if self.whole is not None:
            yield "a delta after the text was done"
        self.pieces.append(piece)

    def end(self, whole: str) -> Iterator[str]:
        if self.whole is not None:
            yield "the text was done before"
        self.whole = whole
        joined = "".join(self.pieces)
        fits = whole == joined if self.from_start else whole.endswith(joined)
        if not fits and not (self.deltas_optional and not self.pieces):
            yield f"the deltas make {joined!r}, the text is {whole!r}"


class PartState:
    """One content or summary part."""

    __slots__ = ("annotations", "done", "kind", "text")

    def __init__(self, kind: str, text: TextRun) -> None:
        self.kind = kind
        self.text = text
        self.annotations: list[Any] = []
        self.done: JSONObject | None = None


class ItemState:
    """What was told of one item so far."""

    def __init__(
        self, item_id: str, kind: str, index: int, opening: JSONObject | None, *, deltas_optional: bool
    ) -> None:
        self.id = item_id
        self.kind = kind
        self.index = index
        self.opening = opening
        self.closed: JSONObject | None = None
        self._deltas_optional = deltas_optional
        self._parts: dict[str, dict[int, PartState]] = {"content": {}, "summary": {}}
        self._arguments = self._new_run()
        self._phases: list[str] = []

    @property
    def from_start(self) -> bool:
        """Whether the item's whole life was seen."""
        return self.opening is not None

    @property
    def is_text(self) -> bool:
        """Messages and reasoning are told one at a time; calls may be open side by side."""
        return self.kind in {"message", "reasoning"}

    def check_opening(self) -> Iterator[str]:
        """What is wrong with the item in `response.output_item.added`: zero values, nothing missing."""
        if self.opening is None:
            return
        yield from check_item(self.opening, "item")
        rule = ITEM_RULES.get(self.kind)
        for key, zero in (rule.zero if rule else {}).items():
            if key in self.opening and self.opening[key] != zero:
                yield f"item.{key} is {self.opening[key]!r} when it opens, not {zero!r}"

    def part_added(self, event: Event, *, place: str) -> Iterator[str]:
        parts, index = self._parts[place], event[_INDEX_KEY[place]]
        part = event["part"]
        if any(each.done is None for each in parts.values()):
            yield "a part opens while another is open"
        if index in parts or index < max(parts, default=-1) or (self.from_start and index != len(parts)):
            yield f"{_INDEX_KEY[place]} is {index}, {len(parts)} part(s) came before"
        allowed = _PART_KINDS[self.kind, place]
        wrong = list(check_part(part, "part", allowed))
        yield from wrong
        if wrong:
            return
        if part[_TEXT_KEY[part["type"]]]:
            yield "a part opens with text in it"
        text = TextRun(from_start=True, deltas_optional=self._deltas_optional)
        parts[index] = PartState(part["type"], text)

    def text_delta(self, event: Event, *, place: str, kind: str) -> Iterator[str]:
        yield from _check_logprobs(event, kind)
        part = self._part(event, place, kind)
        if part is None:
            yield "a delta for a part that is not open"
        elif part.kind != kind:
            yield f"a delta of {kind} for a part of type {part.kind}"
        else:
            yield from part.text.add(event["delta"])

    def text_done(self, event: Event, *, place: str, kind: str) -> Iterator[str]:
        yield from _check_logprobs(event, kind)
        part = self._part(event, place, kind)
        if part is None or part.kind != kind:
            yield "the text of a part that is not open is done"
        else:
            yield from part.text.end(event[_TEXT_KEY[kind]])

    def part_done(self, event: Event, *, place: str) -> Iterator[str]:
        told = event["part"]
        wrong = list(check_part(told, "part", _PART_KINDS[self.kind, place]))
        yield from wrong
        if wrong:
            return
        part = self._part(event, place, told["type"])
        if part is None:
            yield "a part that is not open is done"
            return
        part.done = dict(told)
        text = told[_TEXT_KEY[told["type"]]]
        if part.kind != told["type"]:
            yield f"the part was of type {part.kind}"
        if part.text.whole is None:
            if part.text.from_start:
                yield "the part is done before its text"
        elif text != part.text.whole:
            yield f"the part's text is {text!r}, it was {part.text.whole!r}"
        if part.text.from_start and told.get("annotations", []) != part.annotations and part.annotations:
            yield "the part's annotations are not those that were added"

    def annotation_added(self, event: Event) -> Iterator[str]:
        part = self._part(event, "content", "output_text")
        if part is None or part.kind != "output_text":
            yield "an annotation for a part that is not open"
            return
        if part.text.from_start and event["annotation_index"] != len(part.annotations):
            yield f"annotation_index is {event['annotation_index']}, {len(part.annotations)} came before"
        part.annotations.append(event["annotation"])

    def arguments_delta(self, event: Event) -> Iterator[str]:
        if self.kind == "mcp_call" and self.from_start and not self._phases:
            yield "arguments come before response.mcp_call.in_progress"
        yield from self._arguments.add(event["delta"])

    def arguments_done(self, event: Event) -> Iterator[str]:
        yield from self._arguments.end(event[_ARGUMENTS_KEY[self.kind]])
        if self.opening is not None and event.get("name", self.opening["name"]) != self.opening["name"]:
            yield f"the name is {event['name']!r}, it was {self.opening['name']!r}"

    def phase(self, _event: Event, *, phase: str) -> Iterator[str]:
        """`in_progress` (again and again, in a long call), then `completed` or `failed`."""
        before = self._phases[-1] if self._phases else None
        if before in {"completed", "failed"}:
            yield f"{phase} after {before}"
        if phase != "in_progress" and self.from_start:
            if before is None:
                yield f"{phase} before in_progress"
            if self.kind == "mcp_call" and self._arguments.whole is None:
                yield f"{phase} before the arguments were done"
        self._phases.append(phase)

    def close(self, item: JSONObject) -> Iterator[str]:
        """`response.output_item.done`: the item is whole and agrees with all that was told of it."""
        self.closed = item
        wrong = list(check_item(item, "item"))
        yield from wrong
        if wrong:
            return
        if item.get("status") in {"in_progress", "calling"}:
            yield f"the item is done and its status is {item['status']!r}"
        rule = ITEM_RULES.get(self.kind)
        if self.opening is not None and rule is not None:
            for key in ("id", "type", *rule.kept):
                if item.get(key) != self.opening.get(key):
                    yield f"item.{key} is {item.get(key)!r}, it was {self.opening.get(key)!r}"
        yield from self._close_parts(item)
        if self.kind in _ARGUMENTS_KEY:
            yield from self._close_arguments(item)
        if self.kind == "mcp_call":
            yield from self._close_phases(item)

    def _close_parts(self, item: JSONObject) -> Iterator[str]:
        for place, parts in self._parts.items():
            told = item.get(place) or []
            if not isinstance(told, list) or (self.kind, place) not in _PART_KINDS:
                continue
            if any(part.done is None for part in parts.values()):
                yield f"the item is done while a part of its {place} is open"
            if self.from_start and len(told) != len(parts):
                yield f"the item has {len(told)} part(s) of {place}, {len(parts)} were told"
            for index, part in parts.items():
                if part.done is not None and (index >= len(told) or told[index] != part.done):
                    yield f"item.{place}[{index}] is not the part that was told"

    def _close_arguments(self, item: JSONObject) -> Iterator[str]:
        key = _ARGUMENTS_KEY[self.kind]
        if self._arguments.whole is None:
            if self.from_start:
                yield f"the item is done before its {key}"
        elif item.get(key) != self._arguments.whole:
            yield f"item.{key} is {item.get(key)!r}, it was {self._arguments.whole!r}"

    def _close_phases(self, item: JSONObject) -> Iterator[str]:
        status = item.get("status")
        last = self._phases[-1] if self._phases else None
        if status in {"completed", "failed"} and last != status and (self.from_start or last is not None):
            yield f"the item is {status} and response.mcp_call.{status} did not come before"
        if status == "incomplete" and last in {"completed", "failed"}:
            yield f"the item is incomplete after response.mcp_call.{last}"

    def _new_run(self) -> TextRun:
        return TextRun(from_start=self.from_start, deltas_optional=self._deltas_optional)

    def _part(self, event: Event, place: str, kind: str) -> PartState | None:
        """The open part that an event names; one that opened before the cursor is taken as it is met."""
        parts, index = self._parts[place], event[_INDEX_KEY[place]]
        if index not in parts and not self.from_start and not any(p.done is None for p in parts.values()):
            parts[index] = PartState(kind, self._new_run())
        part = parts.get(index)
        return None if part is None or part.done is not None else part


class ItemEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of an item: on which item types, with which fields, and what it does."""

    kinds: frozenset[str]
    fields: dict[str, Kinds]
    apply: Callable[..., Iterator[str]]


def _text_events(name: str, item_kind: str, part_kind: str, place: str = "content") -> dict[str, ItemEvent]:
    kinds, index = frozenset({item_kind}), {_INDEX_KEY[place]: (int,)}
    return {
        f"response.{name}.delta": ItemEvent(
            kinds=kinds,
            fields={**index, "delta": (str,)},
            apply=partial(ItemState.text_delta, place=place, kind=part_kind),
        ),
        f"response.{name}.done": ItemEvent(
            kinds=kinds,
            fields={**index, _TEXT_KEY[part_kind]: (str,)},
            apply=partial(ItemState.text_done, place=place, kind=part_kind),
        ),
    }


def _part_events(name: str, kinds: frozenset[str], place: str) -> dict[str, ItemEvent]:
    fields: dict[str, Kinds] = {_INDEX_KEY[place]: (int,), "part": (dict,)}
    return {
        f"response.{name}.added": ItemEvent(
            kinds=kinds, fields=fields, apply=partial(ItemState.part_added, place=place)
        ),
        f"response.{name}.done": ItemEvent(
            kinds=kinds, fields=fields, apply=partial(ItemState.part_done, place=place)
        ),
    }


def _argument_events(name: str, kind: str) -> dict[str, ItemEvent]:
    kinds = frozenset({kind})
    return {
        f"response.{name}.delta": ItemEvent(
            kinds=kinds, fields={"delta": (str,)}, apply=ItemState.arguments_delta
        ),
        f"response.{name}.done": ItemEvent(
            kinds=kinds, fields={_ARGUMENTS_KEY[kind]: (str,)}, apply=ItemState.arguments_done
        ),
    }


def _phase_events(kind: str) -> dict[str, ItemEvent]:
    return {
        f"response.{kind}.{phase}": ItemEvent(
            kinds=frozenset({kind}), fields={}, apply=partial(ItemState.phase, phase=phase)
        )
        for phase in ("in_progress", "completed", "failed")
    }


def _check_logprobs(event: Event, kind: str) -> Iterator[str]:
    if kind == "output_text" and not isinstance(event.get("logprobs"), list):
        yield "logprobs is missing: it is [] where there are none"


ITEM_EVENTS: dict[str, ItemEvent] = {
    **_part_events("content_part", frozenset({"message", "reasoning"}), "content"),
    **_part_events("reasoning_summary_part", frozenset({"reasoning"}), "summary"),
    **_text_events("output_text", "message", "output_text"),
    **_text_events("refusal", "message", "refusal"),
    **_text_events("reasoning_text", "reasoning", "reasoning_text"),
    **_text_events("reasoning", "reasoning", "reasoning_text"),
    **_text_events("reasoning_summary_text", "reasoning", "summary_text", "summary"),
    **_argument_events("function_call_arguments", "function_call"),
    **_argument_events("mcp_call_arguments", "mcp_call"),
    **_argument_events("custom_tool_call_input", "custom_tool_call"),
    **_phase_events("mcp_call"),
    **_phase_events("mcp_list_tools"),
    "response.output_text.annotation.added": ItemEvent(
        kinds=frozenset({"message"}),
        fields={"content_index": (int,), "annotation_index": (int,), "annotation": (dict,)},
        apply=ItemState.annotation_added,
    ),
}
