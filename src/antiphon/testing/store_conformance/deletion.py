"""Checks of `delete_response`: hidden at once, erased when nothing living descends from it."""

from typing import Any

from antiphon.domain.errors import ConflictError
from antiphon.store.protocol import Store
from antiphon.testing.store_conformance.expect import raises, same, true
from antiphon.testing.store_conformance.story import Story, everything_of, item, written


async def _turn(
    store: Store, name: str, previous: Story | None = None, *, key: str | None = None, at_s: float = 0
) -> Story:
    story = Story(at_s=at_s, previous=previous.response_id if previous else None, key=key)
    commit = story.admitted(
        input_items=(item(f"{name}_in"),),
        new_steps=(story.step(0),),
        windows=(story.window(2),),
        response=story.completion(item(f"{name}_out")),
    )
    await written(store, commit)
    return story


async def what_is_unknown_is_not_deleted(store: Store) -> None:
    """Deleting says False for an unknown id, and for one that was deleted before."""
    true(not await store.delete_response("default", "resp_unknown"), "an unknown id is not deleted")
    story = await _turn(store, "a")
    true(await store.delete_response("default", story.response_id), "it is deleted")
    true(not await store.delete_response("default", story.response_id), "it is deleted once")


async def what_runs_is_not_deleted(store: Store) -> None:
    """A run that has not ended is not deleted; nothing changes."""
    story = Story()
    await written(store, story.admitted())
    before = await everything_of(store, story)
    await raises(ConflictError, store.delete_response("default", story.response_id))
    same(await everything_of(store, story), before, "the run")


async def a_deleted_response_is_gone(store: Store) -> None:
    """Nothing of a deleted response can be read any more but the idempotency row."""
    story = await _turn(store, "a", key="key")
    other = await _turn(store, "b")
    await store.delete_response("default", story.response_id)
    nothing: dict[str, Any] = {
        "run": None,
        "response": None,
        "steps": [],
        "events": [],
        "input": None,
        "history": None,
    }
    same(await everything_of(store, story), nothing, "the deleted response")
    same([row.response_id for row in (await store.list_responses("default")).responses], [other.response_id])
    same([run.run_id for run in await store.find_by_digest("default", "digest", 0)], [other.run_id])
    same(
        [found.id for found in await store.get_items(["msg_a_out", "msg_b_out"])], ["msg_b_out"], "the items"
    )
    same(await store.get_step(story.step(0).id), None, "its step")
    same(await store.find_by_key("default", "key"), (story.response_id, "digest"), "the idempotency row")


async def a_hidden_turn_is_still_history(store: Store) -> None:
    """A deleted turn is unknown at once, and stays in the history of those that descend from it."""
    first = await _turn(store, "a")
    second = await _turn(store, "b", first)
    third = await _turn(store, "c", second)
    wanted = tuple(item(f"{name}_{way}") for name in "abc" for way in ("in", "out"))
    for story in (second, first):
        true(await store.delete_response("default", story.response_id), "it is deleted")
        true(not await store.delete_response("default", story.response_id), "a hidden response is unknown")
        same(await store.read_response("default", story.response_id), None, "the hidden response")
        same(await store.history("default", story.response_id), None, "its own history")
        same(await store.input_items("default", story.response_id), None, "its input")
        same(await store.events(story.response_id, -1), [], "its events")
        same(await store.get_items([f"msg_{'a' if story is first else 'b'}_out"]), [], "its items by id")
        told = await store.history("default", third.response_id)
        same(told and told.items, wanted, "the history of the last turn")
    listed = await store.list_responses("default")
    same([row.response_id for row in listed.responses], [third.response_id], "the list")
    for since in (0, first.created_at):
        found = await store.find_by_digest("default", "digest", since)
        same([run.run_id for run in found], [third.run_id], "the runs by digest")


async def the_last_descendant_takes_all_with_it(store: Store) -> None:
    """Rows are erased when the last living descendant is deleted, and not before."""
    root = await _turn(store, "a")
    middle = await _turn(store, "b", root)
    left, right = await _turn(store, "c", middle), await _turn(store, "d", middle)
    for story in (root, middle, left):
        await store.delete_response("default", story.response_id)
    held = [len(await store.list_steps(story.run_id)) for story in (root, middle, left, right)]
    same(held, [1, 1, 0, 1], "the steps while one descendant lives")
    told = await store.history("default", right.response_id)
    same(told and len(told.items), 6, "the history of the living one")
    await store.delete_response("default", right.response_id)
    for story in (root, middle, left, right):
        same(await store.get_run(story.run_id), None, "the run")
        same(await store.list_steps(story.run_id), [], "the steps")
    counts = await store.check()
    same((counts["responses"], counts["steps"]), (0, 0), "the rows that are left")


async def a_living_ancestor_stays(store: Store) -> None:
    """Deleting a turn leaves the living turns before it alone."""
    first = await _turn(store, "a")
    second = await _turn(store, "b", first)
    before = await everything_of(store, first)
    await store.delete_response("default", second.response_id)
    same(await everything_of(store, first), before, "the turn before")


async def a_list_goes_on_after_a_hidden_one(store: Store) -> None:
    """A cursor that was deleted while its descendants live still marks its place."""
    first = await _turn(store, "a")
    hidden = await _turn(store, "b", first, at_s=1)
    third = await _turn(store, "c", hidden, at_s=2)
    await store.delete_response("default", hidden.response_id)
    for order, rest in (("asc", third), ("desc", first)):
        page = await store.list_responses("default", order=order, after=hidden.response_id)  # type: ignore[arg-type]
        found = [row.response_id for row in page.responses]
        same(found, [rest.response_id], f"the list after the hidden one, {order}")
