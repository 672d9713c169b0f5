"""Checks of the reads of the wire: responses, lists, history, input, and what admission looks up."""

from collections.abc import Sequence

from antiphon.store.protocol import Order, Store, StoredItem
from antiphon.testing.store_conformance.expect import same, true
from antiphon.testing.store_conformance.story import Story, everything_of, item, written


async def what_is_unknown_is_none(store: Store) -> None:
    """Unknown ids give None, False and empty lists."""
    same(
        await everything_of(store, Story()) | {"steps": []},
        dict.fromkeys(("run", "response", "steps", "events", "input", "history"))
        | {"steps": [], "events": []},
    )
    same(await store.find_by_key("default", "none"), None)
    same(await store.find_by_digest("default", "none", 0), [])
    page = await store.list_responses("default")
    same((page.responses, page.has_more), ((), False), "the list of an empty store")


async def projects_do_not_see_each_other(store: Store) -> None:
    """Another project's ids are unknown to every read that names a project."""
    story = Story(project="ours", key="key")
    await written(store, story.admitted(input_items=(item("in"),), response=story.completion(item("out"))))
    true(await store.read_response("ours", story.response_id), "the project sees its response")
    same(await store.read_response("theirs", story.response_id), None)
    same(await store.history("theirs", story.response_id), None)
    same(await store.input_items("theirs", story.response_id), None)
    same((await store.list_responses("theirs")).responses, ())
    same(await store.find_by_key("theirs", "key"), None)
    same(await store.find_by_digest("theirs", "digest", 0), [])
    true(not await store.delete_response("theirs", story.response_id), "another project cannot delete it")
    same(await store.get_items(["msg_in"]), [], "items by id are the default project's")
    theirs = Story(project="theirs", previous=story.response_id)
    await written(store, theirs.admitted(input_items=(item("t"),)))
    told = await store.history("theirs", theirs.response_id)
    same(told and told.items, (item("t"),), "history does not cross projects")


async def a_list_is_read_page_by_page(store: Store) -> None:
    """Pages in both orders hold every response once, by creation, without output."""
    stories = [Story(at_s=n // 2) for n in range(11)]
    await store.commit([story.admitted() for story in stories])
    await written(store, stories[0].ended(item("out")))
    await written(store, Story(project="theirs").admitted())
    oldest_first = sorted(stories, key=lambda story: (story.created_at, story.response_id))
    for order, wanted in (("asc", oldest_first), ("desc", oldest_first[::-1])):
        found: list[str] = []
        after, more = None, True
        while more:
            page = await store.list_responses("default", limit=3, after=after, order=order)  # type: ignore[arg-type]
            true(len(page.responses) <= 3, "a page is no longer than its limit")  # noqa: PLR2004 - the limit above
            true(all(not row.output for row in page.responses), "a list is without output")
            found += [row.response_id for row in page.responses]
            after, more = found[-1], page.has_more
        same(found, [story.response_id for story in wanted], f"the list, {order}")
    same((await store.list_responses("default", after="resp_unknown")).responses, (), "after an unknown id")
    page = await store.list_responses("default", limit=11)
    same((len(page.responses), page.has_more), (11, False), "a page that holds all")


async def a_list_is_filtered(store: Store) -> None:
    """`status` and `prefix` keep what fits, the prefix with or without `resp_`."""
    stories = [Story(at_s=n) for n in range(6)]
    await store.commit([story.admitted() for story in stories])
    await store.commit([story.ended() for story in stories[:2]])
    ended = await store.list_responses("default", status="completed", order="asc")
    same(
        [row.response_id for row in ended.responses],
        [story.response_id for story in stories[:2]],
        "the ended",
    )
    one = stories[3].response_id
    for prefix in (one, one[:20], one.removeprefix("resp_"), one.removeprefix("resp_")[:15]):
        page = await store.list_responses("default", prefix=prefix)
        same([row.response_id for row in page.responses], [one], f"the ids that begin with {prefix}")
    same((await store.list_responses("default", prefix="resp_zz")).responses, ())
    same((await store.list_responses("default", prefix="resp%")).responses, (), "a prefix is no pattern")
    page = await store.list_responses("default", prefix="resp_", limit=4, order="asc")
    same([row.response_id for row in page.responses], [story.response_id for story in stories[:4]])
    true(page.has_more, "there are more with this prefix")
    page = await store.list_responses(
        "default", prefix="resp_", after=page.responses[-1].response_id, order="asc"
    )
    same([row.response_id for row in page.responses], [story.response_id for story in stories[4:]])
    page = await store.list_responses("default", prefix="resp_", status="queued")
    same([row.response_id for row in page.responses], [story.response_id for story in stories[:1:-1]])


async def history_is_told_in_order(store: Store) -> None:
    """Fifty turns come in order: each turn's input, then its output, and the row of the last turn."""
    wanted: list[StoredItem] = []
    previous: str | None = None
    for turn in range(50):
        story = Story(at_s=turn, previous=previous)
        came = tuple(item(f"{turn}_in_{n}", n) for n in range(1 + turn % 3))
        went = tuple(item(f"{turn}_out_{n}", n) for n in range(1 + turn % 2))
        await written(store, story.admitted(input_items=came), story.ended(*went))
        wanted += [*came, *went]
        previous = story.response_id
        if turn % 10 in {0, 9}:
            told = await store.history("default", previous)
            same(told and told.items, tuple(wanted), f"the history at turn {turn}")
            last = await store.read_response("default", previous)
            same(told and told.last, last, f"the last row at turn {turn}")


async def history_forks(store: Store) -> None:
    """Two turns may follow the same one; each has its own history."""
    root = Story()
    await written(store, root.admitted(input_items=(item("root"),), response=root.completion()))
    for name in ("left", "right"):
        story = Story(previous=root.response_id)
        await written(store, story.admitted(input_items=(item(name),)))
        told = await store.history("default", story.response_id)
        same(told and told.items, (item("root"), item(name)), f"the history of the {name} turn")


async def an_open_turn_has_its_input(store: Store) -> None:
    """The history of a response that has not ended is its input and all before it."""
    first = Story()
    await written(store, first.admitted(input_items=(item("in"),), response=first.completion(item("out"))))
    second = Story(at_s=1, previous=first.response_id)
    await written(store, second.admitted(input_items=(item("more"),)))
    told = await store.history("default", second.response_id)
    same(told and told.items, (item("in"), item("out"), item("more")), "the items")
    same(told and told.last.status, "queued", "the last row")
    same(told and told.last.previous_response_id, first.response_id, "the one before")


async def input_is_read_page_by_page(store: Store) -> None:
    """The input of one response in both orders, newest first unless asked; output is not in it."""
    story = Story()
    items = [item(f"{n}", n) for n in range(7)]
    await written(store, story.admitted(input_items=tuple(items), response=story.completion(item("out"))))
    page = await store.input_items("default", story.response_id)
    same(page and (page.items, page.has_more), (tuple(items[::-1]), False), "the input")
    for order, wanted in (("asc", items), ("desc", items[::-1])):
        found: list[StoredItem] = []
        after, more = None, True
        while more:
            page = await store.input_items(
                "default",
                story.response_id,
                limit=3,
                after=after,
                order=order,  # type: ignore[arg-type]
            )
            if page is None:
                raise AssertionError("the response is gone")
            found += page.items
            after, more = found[-1].item_id, page.has_more
        same(found, wanted, f"the input, {order}")
    page = await store.input_items("default", story.response_id, after="msg_unknown")
    same(page and page.items, (), "the input after an unknown id")
    same(await store.input_items("default", "resp_unknown"), None, "the input of an unknown response")


async def input_with_one_id_twice_is_read_to_its_end(store: Store) -> None:
    """When a client sends an item twice, reading page by page comes to an end and repeats no place."""
    story = Story()
    ids = ("a", "b", "a", "c", "a")
    items = tuple(item(name, position) for position, name in enumerate(ids))
    await written(store, story.admitted(input_items=items))
    orders: tuple[Order, ...] = ("asc", "desc")
    for order in orders:
        found: list[StoredItem] = []
        while len(found) <= len(items):
            after = found[-1].item_id if found else None
            page = await store.input_items("default", story.response_id, limit=1, after=after, order=order)
            if page is None or not page.items:
                break
            found += page.items
        true(found and len({one.position for one in found}) == len(found), "no place is read twice")


async def a_body_is_found_again(store: Store) -> None:
    """`find_by_digest` gives the runs admitted with this body since that time, the newest first."""
    stories = [Story(at_s=n, digest="body") for n in range(4)]
    await store.commit([story.admitted() for story in stories])
    await written(store, Story(at_s=5, digest="other").admitted())
    found = await store.find_by_digest("default", "body", stories[1].created_at)
    same(
        [run.run_id for run in found], [story.run_id for story in stories[:0:-1]], "the runs since the second"
    )
    same(found[0], await store.get_run(stories[3].run_id), "the run's row")
    same(await store.find_by_digest("default", "body", stories[3].created_at + 1), [], "the runs since later")
    same(len(await store.find_by_digest("default", "body", 0)), 4, "the runs of all time")
    same(
        len(await store.find_by_digest("default", "body", stories[0].created_at + 0.5)),
        3,
        "half a second later",
    )
    same(await store.find_by_digest("default", "bod", 0), [], "the runs of another body")


async def a_check_counts(store: Store) -> None:
    """`check` proves that the store can be written, and counts what it holds."""
    before = await store.check()
    first, second = Story(), Story()
    await written(
        store, first.admitted(new_steps=(first.step(0),), windows=(first.window(),)), second.admitted()
    )
    await written(store, second.ended(item("out")))
    after = await store.check()
    same(_numbers(before, ("responses", "steps")), (0, 0), "the counts of an empty store")
    same(_numbers(after, ("responses", "steps")), (2, 1), "the counts")
    same(after["runs"], {"queued": 1, "running": 0, "ended": 1}, "the runs by state")
    true(isinstance(after["size_bytes"], int) and after["size_bytes"] > 0, "a store knows its size")


def _numbers(counts: dict[str, object], names: Sequence[str]) -> tuple[object, ...]:
    return tuple(counts[name] for name in names)
