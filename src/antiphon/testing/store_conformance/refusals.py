"""Checks of what can never be written: refused alone, whole, and the run may go on."""

from itertools import product

import msgspec

from antiphon.domain.errors import StoreRefusedError
from antiphon.domain.steps import StepKind, StepState
from antiphon.store.protocol import Commit, EventWindow, ResponseUpdate, RunState, Store
from antiphon.testing.store_conformance.expect import outcome_is, same
from antiphon.testing.store_conformance.story import Story, everything_of, item, written


async def _refuses(store: Store, story: Story, commit: Commit, why: str) -> None:
    before = await everything_of(store, story)
    outcome_is((await store.commit([commit]))[0], StoreRefusedError)
    same(await everything_of(store, story), before, f"the run after a refused commit ({why})")
    await written(store, story.then())


async def a_step_at_a_taken_place_is_refused(store: Store) -> None:
    """A new step at a taken place, or with a taken id, refuses its whole entry."""
    story, other = Story(), Story()
    await written(
        store, story.admitted(new_steps=(story.step(0),)), other.admitted(new_steps=(other.step(0),))
    )
    for step, why in (
        (story.step(0, id="step_new"), "a taken place"),
        (story.step(1, id=story.step(0).id), "a taken id"),
        (story.step(1, id=other.step(0).id), "another run's id"),
    ):
        commit = story.then(
            run_state="running",
            new_steps=(story.step(7), step),
            windows=(story.window(),),
            input_items=(item("in"),),
        )
        await _refuses(store, story, commit, why)


async def a_step_of_another_run_is_refused(store: Store) -> None:
    """A claim writes its own run's steps, and no other's."""
    story, other = Story(), Story()
    await written(store, story.admitted(), other.admitted(new_steps=(other.step(0),)))
    await _refuses(store, story, story.then(new_steps=(other.step(1),)), "a new step")
    changed = other.step(0, StepState.PROCESSING)
    await _refuses(store, story, story.then(changed_steps=(changed,)), "a changed step")
    claimed = msgspec.structs.replace(changed, request_id=story.run_id)
    await _refuses(store, story, story.then(changed_steps=(claimed,)), "a changed step under another's id")
    same(await store.list_steps(other.run_id), [other.step(0)], "the other run's steps")


async def a_step_keeps_its_identity(store: Store) -> None:
    """A changed step must stand, where it says, as what it says."""
    story = Story()
    step = story.step(0)
    await written(store, story.admitted(new_steps=(step,)))
    for changes in (
        {"id": "step_unknown"},
        {"ordinal": 1},
        {"parent_step_id": "step_above"},
        {"step_kind": StepKind.TOOL_CALL},
        {"step_sequence": 9},
    ):
        changed = msgspec.structs.replace(story.step(0, StepState.PROCESSING), **changes)
        await _refuses(store, story, story.then(changed_steps=(changed,)), str(changes))


async def a_row_holds_what_its_state_says(store: Store) -> None:
    """A step whose fields do not fit its state is refused, new or changed."""
    wrong = (
        (StepState.PENDING, {"response_payload": b"1"}),
        (StepState.PENDING, {"error": b"1"}),
        (StepState.PENDING, {"started_at": 1.0}),
        (StepState.COMPLETED, {"response_payload": None}),
        (StepState.COMPLETED, {"error": b"1"}),
        (StepState.FAILED, {"error": None}),
        (StepState.FAILED, {"response_payload": b"1"}),
    )
    story = Story()
    await written(store, story.admitted(new_steps=(story.step(0, StepState.PROCESSING),)))
    for state, fields in wrong:
        changed, new = story.step(0, state, **fields), story.step(1, state, **fields)
        await _refuses(store, story, story.then(changed_steps=(changed,)), f"changed, {state} with {fields}")
        await _refuses(store, story, story.then(new_steps=(new,)), f"new, {state} with {fields}")


async def a_run_is_admitted_once(store: Store) -> None:
    """A second admission of a run or of a response id is refused, and the first stays."""
    story = Story()
    await written(store, story.admitted(input_items=(item("in"),)))
    before = await everything_of(store, story)
    again = story.admitted(input_items=(item("other"),))
    outcome_is((await store.commit([again]))[0], StoreRefusedError)
    thief = Story()
    thief.response_id = story.response_id
    outcome_is((await store.commit([thief.admitted()]))[0], StoreRefusedError)
    same(await everything_of(store, story), before, "the run that was first")
    same(await store.get_run(thief.run_id), None, "the run that came second")


async def a_commit_is_for_its_runs_response(store: Store) -> None:
    """A commit that names another run's response is refused, and that response stays as it is."""
    story, other = Story(), Story()
    await written(store, story.admitted(), other.admitted())
    before = await everything_of(store, other)
    for parts in ({}, {"run_state": "running"}, {"response": story.completion(item("out"))}):
        commit = story.then(
            response_id=other.response_id, windows=(story.window(),), input_items=(item("in"),), **parts
        )
        await _refuses(store, story, commit, str(parts))
        same(await everything_of(store, other), before, "the other response")
    misnamed = Story()
    outcome = (await store.commit([misnamed.admitted(response_id=other.response_id)]))[0]
    outcome_is(outcome, StoreRefusedError)
    same(await store.get_run(misnamed.run_id), None, "the run that named another response")


async def sequence_numbers_are_used_once(store: Store) -> None:
    """Windows rise, end below the next number, and never begin below the one before, even after a strike."""
    story = Story()
    step_id = story.step(0).id
    await written(store, story.admitted(windows=(story.window(5, step_id),)))
    await written(store, story.then(struck_steps=(step_id,)))
    wrong: tuple[tuple[tuple[tuple[int, int], ...], int, str], ...] = (
        (((-1, 1),), 2, "a number that was used"),
        (((-5, -5),), 2, "a number that was struck"),
        (((0, 2), (2, 3)), 4, "windows that overlap"),
        (((3, 4), (0, 1)), 5, "windows that fall"),
        (((1, 0),), 4, "a window that ends before it begins"),
        (((0, 2),), 2, "a window beyond the next number"),
    )
    states: tuple[RunState | None, ...] = (None, "running")
    for (places, after, why), state in product(wrong, states):
        run = await store.get_run(story.run_id)
        used = run.next_sequence_number if run is not None else 0
        windows = tuple(EventWindow(used + first, used + last, None, b"e") for first, last in places)
        commit = story.then(windows=windows, next_sequence_number=used + after, run_state=state)
        await _refuses(store, story, commit, why)


async def only_an_ended_response_has_output(store: Store) -> None:
    """Output comes with the end, and no two items stand at one place."""
    story = Story()
    await written(store, story.admitted(input_items=(item("in"),)))
    early = ResponseUpdate(status="in_progress", envelope=b"{}", output=(item("out"),))
    await _refuses(store, story, story.then(response=early), "output before the end")
    twice = story.ended(item("a", 0), item("b", 0))
    await _refuses(store, story, twice, "two items at one place")
    await _refuses(
        store, story, story.then(input_items=(item("again", 0),)), "an input item at a taken place"
    )
