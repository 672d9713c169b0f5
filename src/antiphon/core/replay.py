"""Events made from what a response holds, for one whose events were never kept.

`events_of` gives the whole stream of an ended response: always the same for the same response, so that a
cursor into it holds; each text comes as one delta, for clients that listen to nothing else. `tell_items`
tells the output so far of one that goes on.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.core.narration import Narrator
from antiphon.domain.events import Event

encode = msgspec.json.encode

_DONE = {
    "output_text": ("response.output_text.done", "text", b',"logprobs":[]'),
    "refusal": ("response.refusal.done", "refusal", b""),
    "reasoning_text": ("response.reasoning_text.done", "text", b""),
}


def events_of(response: dict[str, Any]) -> list[Event]:
    """Every event of a response that was not streamed, in order."""
    told: list[Event] = []
    narrator = Narrator(told.append)
    begun = {
        **response,
        "status": "in_progress",
        "output": [],
        "usage": None,
        "error": None,
        "incomplete_details": None,
        "completed_at": None,
    }
    body = encode(begun)
    narrator.response("response.created", body)
    narrator.response("response.in_progress", body)
    tell_items(narrator, response["output"], deltas=True)
    if response["status"] == "failed" and response["error"]:
        narrator.error(response["error"])
    narrator.ended(response["status"], encode(response))
    return told


def tell_items(narrator: Narrator, output: Sequence[dict[str, Any]], *, deltas: bool = False) -> None:
    """Tell each item whole, with one delta or none; one that is in progress is opened and stays open."""
    for item in output:
        _tell_item(narrator, narrator.take_output_index(), item, deltas=deltas)


def _tell_item(narrator: Narrator, index: int, item: dict[str, Any], *, deltas: bool) -> None:
    match item["type"]:
        case "message" | "reasoning":
            _tell_parts(narrator, index, item, deltas=deltas)
        case "function_call" | "mcp_call":
            _tell_call(narrator, index, item, deltas=deltas)
        case _:
            narrator.item_added(index, item)
    if item.get("status") != "in_progress":
        narrator.item_done(index, item)


def _tell_parts(narrator: Narrator, index: int, item: dict[str, Any], *, deltas: bool) -> None:
    empty = {**item, "status": "in_progress"}
    if item["type"] == "message":
        empty["content"] = []
    else:
        empty.pop("content", None)
    narrator.item_added(index, empty)
    for place, part in enumerate(item.get("content") or ()):
        event, key, extra = _DONE[part["type"]]
        where = b'"content_index":%d' % place
        blank = {**part, key: ""}
        text = b'%b,"%b":%b%b' % (where, key.encode(), encode(part[key]), extra)
        narrator.item_event(
            "response.content_part.added", item["id"], index, b'%b,"part":%b' % (where, encode(blank))
        )
        if deltas and part[key]:
            delta = b'%b,"delta":%b%b' % (where, encode(part[key]), extra)
            narrator.item_event(event.removesuffix(".done") + ".delta", item["id"], index, delta)
        narrator.item_event(event, item["id"], index, text)
        narrator.item_event(
            "response.content_part.done", item["id"], index, b'%b,"part":%b' % (where, encode(part))
        )


def _tell_call(narrator: Narrator, index: int, item: dict[str, Any], *, deltas: bool) -> None:
    arguments = b'"arguments":' + encode(item["arguments"])
    delta = b'"delta":' + encode(item["arguments"]) if deltas and item["arguments"] else None
    if item["type"] == "function_call":
        narrator.item_added(index, {**item, "status": "in_progress", "arguments": ""})
        if delta is not None:
            narrator.item_event("response.function_call_arguments.delta", item["id"], index, delta)
        rest = b'"name":%b,%b' % (encode(item["name"]), arguments)
        narrator.item_event("response.function_call_arguments.done", item["id"], index, rest)
        return
    blank = {**item, "status": "in_progress", "arguments": "", "output": None, "error": None}
    narrator.item_added(index, blank)
    narrator.item_event("response.mcp_call.in_progress", item["id"], index)
    if delta is not None:
        narrator.item_event("response.mcp_call_arguments.delta", item["id"], index, delta)
    narrator.item_event("response.mcp_call_arguments.done", item["id"], index, arguments)
    if item["status"] in {"completed", "failed"}:
        narrator.item_event(f"response.mcp_call.{item['status']}", item["id"], index)
