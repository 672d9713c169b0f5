"""Checks of `ResponseStore`: whole responses and their items."""

from typing import Any

from antiphon.domain.errors import NotFoundError, StoreRefusedError
from antiphon.domain.inference import Item
from antiphon.domain.responses import Response
from antiphon.domain.usage import Usage
from antiphon.store.protocol import ResponseStore
from antiphon.testing.store_conformance.expect import raises, same, true
from antiphon.testing.store_conformance.story import START_S, Story


def _message(item_id: str, text: str) -> dict[str, Any]:
    return {
        "type": "message",
        "id": item_id,
        "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def _response(name: str, at_s: float = 0, **changes: Any) -> Response:
    values: dict[str, Any] = {
        "id": Story(at_s=at_s).response_id,
        "model": "model-1",
        "created_at": int(START_S + at_s),
        "completed_at": int(START_S + at_s) + 1,
        "output": [_message(f"msg_{name}_out", f"{name} out")],
        "input_items": (Item(f"msg_{name}_in", _message(f"msg_{name}_in", f"{name} in")),),
    }
    return Response(**(values | changes))


async def a_persisted_response_comes_back(store: ResponseStore) -> None:
    """What was persisted is what is read: every field, the output, the input, and what the wire adds."""
    response = _response(
        "whole",
        usage=Usage(input_tokens=1, output_tokens=2, total_tokens=3),
        metadata={"k": "v\x00"},
        extra={"warnings": ["one"]},
        output=[_message("msg_a", "a"), _message("msg_b", "b")],
    )
    await store.persist(response)
    same(await store.get_response(response.id), response, "the response")


async def an_unknown_response_is_none(store: ResponseStore) -> None:
    """An unknown id is None to read, and `NotFoundError` to go on from."""
    same(await store.get_response("resp_unknown"), None)
    await raises(NotFoundError, store.rehydrate("resp_unknown"))
    same(await store.get_items(["msg_unknown"]), [])
    same(await store.get_items([]), [])


async def items_are_found_by_id(store: ResponseStore) -> None:
    """`get_items` gives those that exist, each once; of several with one id the newest."""
    await store.persist(_response("one"))
    await store.persist(_response("two", 1, output=[_message("msg_one_out", "newer")]))
    found = {item.id: item.data for item in await store.get_items(["msg_one_out", "msg_none", "msg_two_in"])}
    same(sorted(found), ["msg_one_out", "msg_two_in"], "the ids")
    same(found["msg_one_out"]["content"][0]["text"], "newer", "the newest item of its id")


async def a_conversation_is_rehydrated_in_order(store: ResponseStore) -> None:
    """The items of all turns come in order: each turn's input, then its output."""
    previous: str | None = None
    wanted = []
    for turn in range(4):
        response = _response(f"turn{turn}", turn)
        await store.persist(response, previous_response_id=previous)
        previous = response.id
        wanted += [f"msg_turn{turn}_in", f"msg_turn{turn}_out"]
        same([item.id for item in await store.rehydrate(response.id)], wanted, "the history")
    head = await store.get_response(previous or "")
    true(head and head.previous_response_id, "a turn knows the one before")


async def what_came_later_is_no_history(store: ResponseStore) -> None:
    """A response that names itself, or one that was written after it, has the history it had at first."""
    alone, early, late = _response("alone"), _response("early", 1), _response("late", 2)
    await store.persist(alone, previous_response_id=alone.id)
    await store.persist(early, previous_response_id=late.id)
    await store.persist(late, previous_response_id=early.id)
    for response, names in ((alone, ("alone",)), (early, ("early",)), (late, ("early", "late"))):
        wanted = [f"msg_{name}_{way}" for name in names for way in ("in", "out")]
        same([item.id for item in await store.rehydrate(response.id)], wanted, "the history")


async def only_an_ended_response_is_persisted(store: ResponseStore) -> None:
    """A response that has not ended, or whose id is taken, is refused, and the first stays."""
    running = _response("running", status="in_progress")
    await raises(StoreRefusedError, store.persist(running))
    same(await store.get_response(running.id), None)
    first = _response("first")
    await store.persist(first)
    await raises(StoreRefusedError, store.persist(_response("second", id=first.id)))
    same(await store.get_response(first.id), first, "the response that was first")
