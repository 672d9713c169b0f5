"""Checks of `Store.commit`: what is written, and that a group's entries stand alone."""

import asyncio
from itertools import product
from typing import Any

from antiphon.domain.errors import ClaimLost, DuplicateResponseError, StoreRefusedError
from antiphon.domain.steps import LEGAL_MOVES, StepState
from antiphon.store.protocol import Claim, Commit, RunState, Store, StoredResponse, StoredRun
from antiphon.testing.store_conformance.expect import outcome_is, same, true
from antiphon.testing.store_conformance.story import Story, everything_of, item, written


async def an_admission_writes_run_and_response(store: Store) -> None:
    """The first commit of a run writes its row under its claim, its response and its input."""
    story = Story(key="key-1")
    new = story.new_run(requires=("model:model-1", "tool:search"))
    await written(store, story.admitted(new_run=new, input_items=(item("in"),)))
    wanted = StoredRun(
        run_id=story.run_id,
        project=story.project,
        response_id=story.response_id,
        state="queued",
        mode="background",
        request=new.request,
        body_digest="digest",
        created_at=story.created_at,
        fence=1,
        owner="worker",
        commit_no=1,
        takeovers=0,
        next_sequence_number=0,
        keyed=True,
        requires=("model:model-1", "tool:search"),
    )
    same(await store.get_run(story.run_id), wanted, "the run")
    same(wanted.claim, story.claim, "the claim that the row shows")
    response = StoredResponse(
        response_id=story.response_id,
        run_id=story.run_id,
        project=story.project,
        status="queued",
        model="model-1",
        mode="background",
        created_at=story.created_at,
        envelope=new.envelope,
    )
    same(await store.read_response(story.project, story.response_id), response, "the response")
    page = await store.input_items(story.project, story.response_id)
    same(page and page.items, (item("in"),), "the input")


async def commits_move_a_run_to_its_end(store: Store) -> None:
    """State, status, steps, events and output follow from the commits, and the end ends the run."""
    story = Story()
    pending = story.step(0, StepState.PENDING)
    await written(store, story.admitted(new_steps=(pending,)))
    processing = story.step(0, StepState.PROCESSING)
    window = story.window(3)
    await written(store, story.then(run_state="running", changed_steps=(processing,), windows=(window,)))
    run = await store.get_run(story.run_id)
    same(run and (run.state, run.commit_no, run.next_sequence_number), ("running", 2, 3), "the run")
    same(await store.list_steps(story.run_id), [processing], "the steps")
    done, more = story.step(0, StepState.COMPLETED), story.step(1, StepState.COMPLETED)
    last = story.window(2)
    await written(store, story.ended(item("out"), changed_steps=(done,), new_steps=(more,), windows=(last,)))
    run = await store.get_run(story.run_id)
    same(run and (run.state, run.commit_no, run.next_sequence_number), ("ended", 3, 5), "the ended run")
    same(await store.list_steps(story.run_id), [done, more], "the ended steps")
    same(await store.events(story.response_id, -1), [window, last], "the events")
    response = await store.read_response(story.project, story.response_id)
    found = response and (response.status, response.envelope, response.completed_at, response.output)
    wanted = ("completed", b'{"status":"completed"}', story.created_at + 1, (item("out"),))
    same(found, wanted, "the ended response")
    same(response and response.next_sequence_number, 5, "the number after the last event")


async def one_commit_tells_a_whole_run(store: Store) -> None:
    """Admission, steps, events and end may all come in one commit."""
    story = Story()
    step, window = story.step(0, StepState.COMPLETED), story.window(4)
    commit = story.admitted(
        input_items=(item("in"),),
        new_steps=(step,),
        windows=(window,),
        response=story.completion(item("out")),
        progressed=True,
    )
    await written(store, commit)
    run = await store.get_run(story.run_id)
    same(run and (run.state, run.next_sequence_number), ("ended", 4), "the run")
    response = await store.read_response(story.project, story.response_id)
    same(response and (response.status, response.output), ("completed", (item("out"),)), "the response")
    same(await store.list_steps(story.run_id), [step], "the steps")
    same(await store.events(story.response_id, -1), [window], "the events")


async def a_status_may_change_before_the_end(store: Store) -> None:
    """A response update without `ended` changes status and envelope, and the run goes on."""
    story = Story()
    update = story.completion()
    update = type(update)(status="in_progress", envelope=b'{"status":"in_progress"}')
    await written(store, story.admitted(), story.then(response=update, run_state="running"))
    response = await store.read_response(story.project, story.response_id)
    same(response and (response.status, response.envelope), ("in_progress", update.envelope), "the response")
    run = await store.get_run(story.run_id)
    same(run and run.state, "running", "the run")
    await written(store, story.ended())


async def a_stale_commit_changes_nothing(store: Store) -> None:
    """Another fence, another owner, an old number, an unknown run, an ended run: `ClaimLost`."""
    story = Story()
    await written(store, story.admitted(new_steps=(story.step(),)), story.then(run_state="running"))
    before = await everything_of(store, story)

    def attempt(state: RunState | None, parts: dict[str, Any]) -> Commit:
        return story.then(
            run_state=state,
            changed_steps=(story.step(0, StepState.PROCESSING),),
            new_steps=(story.step(1),),
            windows=(story.window(),),
            input_items=(item("late"),),
            struck_steps=(story.step(0).id,),
            released=True,
            **parts,
        )

    claim = story.claim
    stale: tuple[dict[str, Any], ...] = (
        {"claim": Claim(claim.run_id, claim.fence - 1, claim.owner)},
        {"claim": Claim(claim.run_id, claim.fence + 1, claim.owner)},
        {"claim": Claim(claim.run_id, claim.fence, "somebody else")},
        {"commit_no": 2},
        {"commit_no": 1},
    )
    states: tuple[RunState | None, ...] = (None, "running", "ended")
    for state, parts in product(states, stale):
        outcomes = await store.commit([attempt(state, parts)])
        outcome_is(outcomes[0], ClaimLost)
        same(await everything_of(store, story), before, f"the run after a stale commit with {parts}")
    unknown = Story()
    outcome_is((await store.commit([unknown.then(run_state="running")]))[0], ClaimLost)
    same(await store.get_run(unknown.run_id), None, "the run that nobody admitted")
    await written(store, story.ended())
    ended = await everything_of(store, story)
    for state in states:
        late = story.then(new_steps=(story.step(1),), run_state=state)
        outcome_is((await store.commit([late]))[0], ClaimLost)
    same(await everything_of(store, story), ended, "the ended run")


async def a_seized_run_refuses_its_old_owner(store: Store) -> None:
    """When the fence has risen, the old claim writes nothing and the new one does."""
    story = Story()
    await written(store, story.admitted())
    seized = await store.seize(story.run_id, "other")
    if seized is None:
        raise AssertionError("a running run was not seized")
    outcome_is((await store.commit([story.then(new_steps=(story.step(),))]))[0], ClaimLost)
    same(await store.list_steps(story.run_id), [], "the steps after a stale commit")
    story.claim = seized.claim
    await written(store, story.then(new_steps=(story.step(),)))


async def a_number_counts_once(store: Store) -> None:
    """Of two commits with one number at the same time, exactly one is written."""
    story = Story()
    await written(store, story.admitted())
    commits = [story.then(commit_no=2, new_steps=(story.step(n),)) for n in range(20)]
    outcomes = await asyncio.gather(*(store.commit([commit]) for commit in commits))
    winners = [n for n, outcome in enumerate(outcomes) if outcome == [None]]
    same(len(winners), 1, "the commits that were written")
    same([step.ordinal for step in await store.list_steps(story.run_id)], winners, "the steps")


async def entries_of_a_group_stand_alone(store: Store) -> None:
    """A stale and a refused entry fall out, each with its reason; all others are written."""
    stories = [Story(at_s=n) for n in range(6)]
    same(await store.commit([story.admitted() for story in stories]), [None] * 6, "the admissions")
    stale, refused = stories[1], stories[4]
    await store.seize(stale.run_id, "other")
    group = [story.then(new_steps=(story.step(0, StepState.PROCESSING),)) for story in stories]
    group[4] = refused.then(new_steps=(refused.step(0), refused.step(0, id="step_same_place")))
    outcomes = await store.commit(group)
    outcome_is(outcomes[1], ClaimLost)
    outcome_is(outcomes[4], StoreRefusedError)
    same([outcome for n, outcome in enumerate(outcomes) if n not in {1, 4}], [None] * 4, "the others")
    steps = [len(await store.list_steps(story.run_id)) for story in stories]
    same(steps, [1, 0, 1, 1, 0, 1], "the steps that were written")
    run = await store.get_run(refused.run_id)
    same(run and run.commit_no, 1, "the commit number of the refused run")
    await written(store, refused.then(new_steps=(refused.step(0),)))


async def an_empty_group_is_nothing(store: Store) -> None:
    """A group of none has no outcomes."""
    same(await store.commit([]), [], "the outcomes")


async def a_key_is_taken_once(store: Store) -> None:
    """A second run under an idempotency key of the project hears who holds it, and is not written."""
    holder = Story(key="key", digest="digest-a")
    await written(store, holder.admitted())
    late, elsewhere = Story(key="key", digest="digest-b"), Story(key="key", project="elsewhere")
    bystander = Story()
    outcomes = await store.commit([bystander.admitted(), late.admitted(), elsewhere.admitted()])
    error = outcome_is(outcomes[1], DuplicateResponseError)
    same((error.response_id, error.body_digest), (holder.response_id, "digest-a"), "who holds the key")
    same((outcomes[0], outcomes[2]), (None, None), "the others")
    same(await store.get_run(late.run_id), None, "the run that came late")
    same(await store.read_response(late.project, late.response_id), None, "its response")
    same(await store.find_by_key("default", "key"), (holder.response_id, "digest-a"), "the holder")
    same(
        await store.find_by_key("elsewhere", "key"), (elsewhere.response_id, "digest"), "the other project's"
    )


async def a_key_is_taken_once_within_a_group(store: Store) -> None:
    """Of several runs under one new key in a group, the first is written."""
    stories = [Story(key="key", digest=f"digest-{n}") for n in range(3)]
    outcomes = await store.commit([story.admitted() for story in stories])
    same(outcomes[0], None, "the first")
    for outcome in outcomes[1:]:
        same(outcome_is(outcome, DuplicateResponseError).response_id, stories[0].response_id, "the holder")


async def changed_steps_move_along_the_table(store: Store) -> None:
    """Every pair of states: written when legal or when an open step stays as it is, else refused."""
    for before in StepState:
        for after in StepState:
            story = Story()
            await written(store, story.admitted(new_steps=(story.step(0, before),)))
            changed = story.step(0, after, updated_at=story.created_at + 9)
            outcome = (await store.commit([story.then(changed_steps=(changed,))]))[0]
            if after in LEGAL_MOVES[before] or (before is after and not before.is_terminal):
                same(outcome, None, f"{before} to {after}")
                same(await store.list_steps(story.run_id), [changed], f"the step after {before} to {after}")
            else:
                outcome_is(outcome, StoreRefusedError)
                same(await store.list_steps(story.run_id), [story.step(0, before)], f"{before} stays")


async def bytes_come_back_as_they_went(store: Store) -> None:
    """Payloads are bytes: NUL, broken UTF-8 and megabytes survive."""
    odd = b"\x00\xff{}\x00" * 3
    large = b"x" * 3_000_000
    story = Story()
    step = story.step(0, StepState.COMPLETED, request_payload=odd, response_payload=large)
    window = type(story.window())(0, 0, None, odd)
    stored = type(item("odd"))("msg_odd", 0, odd)
    await written(
        store,
        story.admitted(
            new_run=story.new_run(request=odd, envelope=odd),
            input_items=(stored,),
            new_steps=(step,),
            windows=(window,),
        ),
    )
    run = await store.get_run(story.run_id)
    same(run and run.request, odd, "the request")
    same(await store.list_steps(story.run_id), [step], "the step")
    same(await store.events(story.response_id, -1), [window], "the window")
    response = await store.read_response(story.project, story.response_id)
    same(response and response.envelope, odd, "the envelope")
    told = await store.history(story.project, story.response_id)
    same(told and told.items, (stored,), "the item")


async def many_tasks_commit_at_once(store: Store) -> None:
    """Commits of many runs from many tasks are all written."""
    stories = [Story(at_s=n) for n in range(100)]

    async def tell(story: Story) -> None:
        await written(store, story.admitted(new_steps=(story.step(),)), story.ended(item("out")))

    await asyncio.gather(*map(tell, stories))
    runs = [await store.get_run(story.run_id) for story in stories]
    true(all(run is not None and run.state == "ended" for run in runs), "every run has ended")
