"""A response made out of its events, the way a client that only listens would make it.

Deltas are appended, ended items replace what was built up, and a `response.in_progress` puts back
whatever it carries. Tolerant: says nothing about whether the stream is a valid one.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

JSONObject: TypeAlias = dict[str, Any]

_RESETS = frozenset({"response.created", "response.queued", "response.in_progress"})
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})

# event type -> (list of parts, index key, key of the text in the part)
_PART_DELTAS = {
    "response.output_text.delta": ("content", "content_index", "text"),
    "response.refusal.delta": ("content", "content_index", "refusal"),
    "response.reasoning_text.delta": ("content", "content_index", "text"),
    "response.reasoning.delta": ("content", "content_index", "text"),
    "response.reasoning_summary_text.delta": ("summary", "summary_index", "text"),
}
_PARTS_ADDED = {
    "response.content_part.added": "content",
    "response.reasoning_summary_part.added": "summary",
}
_ITEM_DELTAS = {
    "response.function_call_arguments.delta": "arguments",
    "response.mcp_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}


class Fold:
    """Feed it events; `response` is what they amount to so far."""

    def __init__(self) -> None:
        self.envelope: JSONObject = {}
        self.items: dict[int, JSONObject] = {}

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take one event."""
        kind = event["type"]
        if kind in _RESETS:
            self.envelope = dict(event["response"])
            self.items = dict(enumerate(copy.deepcopy(self.envelope["output"])))
        elif kind in _ENDS:
            self.envelope = dict(event["response"])
        elif kind in {"response.output_item.added", "response.output_item.done"}:
            self.items[event["output_index"]] = copy.deepcopy(event["item"])
        else:
            item = self.items.get(event.get("output_index", -1))
            if item is not None:
                _grow(item, event)

    @property
    def response(self) -> JSONObject:
        """The newest envelope, with the output that the item events made."""
        return {**self.envelope, "output": [item for _, item in sorted(self.items.items())]}


def fold(events: Iterable[Mapping[str, Any]]) -> JSONObject:
    """The response that these events amount to; its `output` is made of the item events alone."""
    folded = Fold()
    for event in events:
        folded.feed(event)
    return folded.response


def _grow(item: JSONObject, event: Mapping[str, Any]) -> None:
    kind = event["type"]
    if kind in _PARTS_ADDED:
        item.setdefault(_PARTS_ADDED[kind], []).append(copy.deepcopy(event["part"]))
    elif kind in _PART_DELTAS:
        place, index_key, text_key = _PART_DELTAS[kind]
        parts, index = item.get(place, ()), event[index_key]
        if index < len(parts):
            parts[index][text_key] = parts[index].get(text_key, "") + event["delta"]
    elif kind in _ITEM_DELTAS:
        key = _ITEM_DELTAS[kind]
        item[key] = item.get(key, "") + event["delta"]
