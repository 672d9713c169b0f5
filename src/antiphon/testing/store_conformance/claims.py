"""Checks of claims: taking over, seizing, giving up, and steps under a claim."""

import asyncio

from antiphon.domain.errors import ClaimLost, DuplicateStep, StepNotFoundError
from antiphon.domain.steps import CreateStepInput, StepKind, StepState
from antiphon.store.protocol import Claim, ResponseStepStore, RunState, Store, StoredRun
from antiphon.testing.store_conformance.expect import outcome_is, raises, same, true
from antiphon.testing.store_conformance.story import Story, written


async def a_takeover_claims_what_is_open(store: Store) -> None:
    """Every run that has not ended gets a higher fence and the owner; the oldest comes first."""
    stories = [Story(at_s=at_s) for at_s in (30, 10, 20)]
    ended = Story(at_s=0)
    await store.commit([story.admitted() for story in stories])
    await written(store, stories[2].then(run_state="running"))
    await written(store, ended.admitted(response=ended.completion()))
    before = await store.get_run(ended.run_id)
    taken = await store.take_over("next")
    wanted = [stories[1].run_id, stories[2].run_id, stories[0].run_id]
    same([run.run_id for run in taken], wanted, "the runs that were taken")
    for run in taken:
        same((run.fence, run.owner, run.takeovers), (2, "next", 1), "the claim")
        same(await store.get_run(run.run_id), run, "the row")
    same(await store.get_run(ended.run_id), before, "the ended run")
    outcome_is((await store.commit([stories[0].then(run_state="running")]))[0], ClaimLost)


async def takeovers_are_counted(store: Store) -> None:
    """Each takeover from an owner counts; progress sets the count to zero; a hand-back is not counted."""
    story = Story()
    await written(store, story.admitted())
    same([await _taken(store, "a"), await _taken(store, "b")], [1, 2], "the count")
    await _own(store, story)
    await written(store, story.then())
    same(await _count(store, story), 2, "the count after a commit without progress")
    states: tuple[RunState | None, ...] = (None, "running")
    for state in states:
        await written(store, story.then(progressed=True, run_state=state))
        same(await _count(store, story), 0, "the count after progress")
        same(await _taken(store, "c"), 1, "the count after the next takeover")
        await _own(store, story)
        await written(store, story.then(released=True, run_state=state))
        run = await store.get_run(story.run_id)
        same(run and run.owner, None, "the owner of a run that was handed back")
        same(await _taken(store, "d"), 1, "the count after a hand-back")
        await _own(store, story)


async def a_released_claim_is_over(store: Store) -> None:
    """Who gave a claim up writes no more, with the fence where it was."""
    story = Story()
    await written(store, story.admitted(), story.then(released=True))
    outcome_is((await store.commit([story.then(run_state="running")]))[0], ClaimLost)
    await raises(ClaimLost, store.under(story.claim).create_step(_step(story)))
    handed = Story()
    await written(store, handed.admitted(released=True))
    run = await store.get_run(handed.run_id)
    same(run and run.owner, None, "the owner of a run that was admitted for others")


async def a_run_can_be_seized(store: Store) -> None:
    """Seizing raises the fence and sets the owner; an ended or unknown run gives None."""
    story = Story()
    await written(store, story.admitted())
    seized = await store.seize(story.run_id, "other")
    same(
        seized and (seized.fence, seized.owner, seized.cancel_requested),
        (2, "other", False),
        "the seized run",
    )
    same(await store.get_run(story.run_id), seized, "the row")
    await _own(store, story)
    await written(store, story.ended())
    before = await store.get_run(story.run_id)
    same(await store.seize(story.run_id, "late"), None, "seizing what has ended")
    same(await store.get_run(story.run_id), before, "the ended run")
    same(await store.seize("run_unknown", "late"), None, "seizing what is not there")


async def a_cancel_is_remembered(store: Store) -> None:
    """The wish to cancel is written with the seizure, and whoever drives the run next sees it."""
    story = Story()
    await written(store, story.admitted())
    seized = await store.seize(story.run_id, "api", cancel=True)
    true(seized and seized.cancel_requested, "the wish is in the row")
    again = await store.seize(story.run_id, "other")
    true(again and again.cancel_requested, "the wish outlives the next seizure")
    taken = await store.take_over("next")
    same([run.cancel_requested for run in taken], [True], "the wish after a takeover")


async def seizures_never_share_a_fence(store: Store) -> None:
    """Of many that seize at once each gets another fence, and only the last one's claim holds."""
    story = Story()
    await written(store, story.admitted())
    seized = await asyncio.gather(*(store.seize(story.run_id, f"owner-{n}") for n in range(30)))
    runs = sorted((run for run in seized if run is not None), key=lambda run: run.fence)
    same([run.fence for run in runs], list(range(2, 32)), "the fences")
    for run in runs[:-1]:
        story.claim = run.claim
        outcome_is((await store.commit([story.then(run_state="running")]))[0], ClaimLost)
    story.claim = runs[-1].claim
    await written(store, story.then(run_state="running"))


async def steps_under_a_claim(store: Store) -> None:
    """Under a claim that holds, the step methods do what they do without one."""
    story = Story()
    await written(store, story.admitted())
    fenced = store.under(story.claim)
    ids = [await fenced.create_step(_step(story, ordinal)) for ordinal in range(3)]
    await raises(DuplicateStep, fenced.create_step(_step(story, 0)))
    for step_id in ids:
        await fenced.mark_step_processing(step_id)
        await fenced.mark_step_processing(step_id)
    await fenced.requeue_step_for_retry(ids[0])
    await fenced.mark_step_processing(ids[0])
    await fenced.complete_step(ids[0], 1)
    await fenced.fail_step(ids[1], 2)
    await fenced.cancel_step(ids[2])
    await raises(StepNotFoundError, fenced.cancel_step("step_unknown"))
    wanted = [StepState.COMPLETED, StepState.FAILED, StepState.CANCELED]
    same([step.state for step in await fenced.list_chain(story.run_id)], wanted, "the states")
    same(await fenced.list_chain(story.run_id), await store.list_chain(story.run_id), "the reads")


async def every_step_write_is_fenced(store: Store) -> None:
    """Under a stale claim every write raises `ClaimLost` and changes nothing."""
    story = Story()
    await written(store, story.admitted())
    fenced = store.under(story.claim)
    pending = await fenced.create_step(_step(story, 0))
    processing = await fenced.create_step(_step(story, 1))
    await fenced.mark_step_processing(processing)
    await store.seize(story.run_id, "worker")
    await _writes_nothing(store, story, fenced, pending, processing)
    claim = (await _row(store, story)).claim
    for stale in (
        Claim(claim.run_id, claim.fence, "other"),
        Claim(claim.run_id, claim.fence + 1, claim.owner),
    ):
        await _writes_nothing(store, story, store.under(stale), pending, processing)
    same([step.id for step in await fenced.list_chain(story.run_id)], [pending, processing], "reads go on")


async def a_claim_ends_with_its_run(store: Store) -> None:
    """When the run has ended, its claim writes no more steps."""
    story = Story()
    steps = (story.step(0), story.step(1, StepState.PROCESSING))
    await written(store, story.admitted(new_steps=steps), story.ended())
    await _writes_nothing(store, story, store.under(story.claim), steps[0].id, steps[1].id)


async def a_claim_is_for_one_run(store: Store) -> None:
    """A claim that holds for one run writes no step of another."""
    story, other = Story(), Story()
    steps = (other.step(0), other.step(1, StepState.PROCESSING))
    await written(store, story.admitted(), other.admitted(new_steps=steps))
    await _writes_nothing(store, other, store.under(story.claim), steps[0].id, steps[1].id)


async def _writes_nothing(
    store: Store, story: Story, fenced: ResponseStepStore, pending: str, processing: str
) -> None:
    before = await store.list_steps(story.run_id)
    true(before, "there are steps")
    for call in (
        fenced.create_step(_step(story, 9)),
        fenced.mark_step_processing(pending),
        fenced.mark_step_processing(processing),
        fenced.complete_step(processing, 1),
        fenced.fail_step(pending, 1),
        fenced.cancel_step(processing),
        fenced.requeue_step_for_retry(processing),
    ):
        await raises(ClaimLost, call)
    same(await store.list_steps(story.run_id), before, "the steps")


async def _taken(store: Store, owner: str) -> int:
    return (await store.take_over(owner))[0].takeovers


async def _row(store: Store, story: Story) -> StoredRun:
    run = await store.get_run(story.run_id)
    if run is None:
        raise AssertionError("the run is gone")
    return run


async def _count(store: Store, story: Story) -> int:
    return (await _row(store, story)).takeovers


async def _own(store: Store, story: Story) -> None:
    story.claim = (await _row(store, story)).claim


def _step(story: Story, ordinal: int = 0) -> CreateStepInput:
    return CreateStepInput(
        request_id=story.run_id,
        ordinal=ordinal,
        step_kind=StepKind.MODEL_CALL,
        step_sequence=ordinal,
        request_payload={},
    )
