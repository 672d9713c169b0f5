"""Checks of the log of events: windows, cursors and strikes."""

from antiphon.domain.steps import StepState
from antiphon.store.protocol import Store
from antiphon.testing.store_conformance.expect import same
from antiphon.testing.store_conformance.story import Story, written


async def a_cursor_reads_on_from_anywhere(store: Store) -> None:
    """From every cursor come the windows that end above it, in order, none of them twice."""
    story = Story()
    windows = [story.window(size) for size in (1, 3, 2, 5)]
    await written(store, story.admitted(windows=tuple(windows[:2])), story.then(windows=tuple(windows[2:])))
    for cursor in range(-1, 12):
        wanted = [window for window in windows if window.last > cursor]
        same(await store.events(story.response_id, cursor), wanted, f"the windows after {cursor}")
    same(await store.events("resp_unknown", -1), [], "the windows of an unknown response")


async def a_limit_cuts_the_log(store: Store) -> None:
    """`limit` bounds the windows of one read; reading on gives the rest."""
    story, other = Story(), Story()
    windows = [story.window() for _ in range(150)]
    await written(store, story.admitted(windows=tuple(windows)), other.admitted(windows=(other.window(9),)))
    same(len(await store.events(story.response_id, -1)), 64, "the windows of one read")
    found, cursor = [], -1
    while page := await store.events(story.response_id, cursor, limit=40):
        found += page
        cursor = page[-1].last
    same(found, windows, "all windows")


async def a_strike_takes_one_attempt_out(store: Store) -> None:
    """A struck step's windows leave the log; what came before, beside and with the strike stays."""
    story = Story()
    torn, other = story.step(0, StepState.PROCESSING), story.step(1, StepState.PROCESSING)
    first, lost = story.window(2), [story.window(3, torn.id), story.window(1, torn.id)]
    beside = story.window(2, other.id)
    await written(
        store,
        story.admitted(new_steps=(torn, other), windows=(first, lost[0])),
        story.then(windows=(lost[1], beside)),
    )
    same(await store.events(story.response_id, -1), [first, *lost, beside], "the log before")
    reset, again = story.window(1), story.window(4, torn.id)
    await written(store, story.then(struck_steps=(torn.id,), windows=(reset, again)))
    same(await store.events(story.response_id, -1), [first, beside, reset, again], "the log after")
    run = await store.get_run(story.run_id)
    same(run and run.next_sequence_number, story.next_number, "the next number")


async def a_strike_without_events_is_nothing(store: Store) -> None:
    """Striking a step that told nothing changes nothing, and leaves other responses alone."""
    story, other = Story(), Story()
    step_id = story.step(0).id
    kept = other.window(2, step_id)
    await written(store, story.admitted(), other.admitted(windows=(kept,)))
    await written(store, story.then(struck_steps=(step_id, "step_unknown")))
    same(await store.events(story.response_id, -1), [], "the log")
    same(await store.events(other.response_id, -1), [kept], "the other response's log")
