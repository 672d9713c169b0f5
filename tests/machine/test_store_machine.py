"""Two stores, one story: whatever is done, SQLite and memory answer alike.

The machine tells both the same random commits, claims, step calls and deletions, good and bad ones, and
holds each answer and everything that can be read afterwards against the other's.
"""

import asyncio
import os
import tempfile
from hashlib import sha256
from pathlib import Path

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from antiphon.domain.errors import Error
from antiphon.domain.steps import CreateStepInput, StepKind, StepState
from antiphon.store.memory import MemoryStore
from antiphon.store.protocol import Claim, EventWindow, ResponseUpdate
from antiphon.store.sqlite.store import SqliteStore
from antiphon.testing.store_conformance.story import LEGAL_FIELDS, START_S, Story, item

PROJECTS = ("default", "other")
OWNERS = ("a", "b")
STATES = list(StepState)
EXAMPLES = int(os.environ.get("ANTIPHON_MACHINE_EXAMPLES", "25"))

places = st.integers(0, 3)
picks = st.integers(0, 1_000_000)


class StoreMachine(RuleBasedStateMachine):
    """Drives both stores; `_both` is where their answers meet."""

    def __init__(self):
        super().__init__()
        self.now = START_S
        self.stories = []
        self.step_ids = []
        self.directory = tempfile.TemporaryDirectory()
        self.loop = asyncio.Runner()
        self.memory = MemoryStore(clock=self._clock)
        self.sqlite = SqliteStore(Path(self.directory.name) / "store.db", clock=self._clock)

    def _clock(self):
        return self.now

    @initialize()
    def open(self):
        """Both stores begin empty."""
        self.loop.run(self.sqlite.open())

    def teardown(self):
        """Let go of the file and the loop."""
        self.loop.run(self.sqlite.close())
        self.loop.close()
        self.directory.cleanup()

    def _both(self, call):
        self.now += 1
        answers = [self.loop.run(_answer(call(store))) for store in (self.memory, self.sqlite)]
        assert answers[0] == answers[1], answers
        return answers[0]

    def _story(self, pick):
        return self.stories[pick % len(self.stories)]

    def _run(self, story):
        return self._both(lambda store: store.get_run(story.run_id))

    # --- what may happen ---

    @rule(
        project=st.sampled_from(PROJECTS),
        follows=st.one_of(st.none(), picks),
        key=st.sampled_from([None, None, "k1", "k2"]),
        at_s=places,
        whole=st.booleans(),
        released=st.booleans(),
    )
    def admit(self, *, project, follows, key, at_s, whole, released):
        """A run is admitted, perhaps after another one, perhaps whole."""
        previous = self._story(follows).response_id if follows is not None and self.stories else None
        name = f"{len(self.stories)}"
        story = Story(
            at_s=at_s,
            project=project,
            previous=previous,
            key=key,
            digest=f"digest-{at_s % 2}",
            random=sha256(name.encode()).digest(),
        )
        parts = {"response": story.completion(item(f"{name}_out"))} if whole else {}
        commit = story.admitted(
            input_items=(item(f"{name}_in"), item(f"{name}_more", 1)),
            new_steps=(story.step(0, StepState.COMPLETED if whole else StepState.PENDING),),
            windows=(story.window(2),),
            released=released,
            **parts,
        )
        self._both(lambda store: store.commit([commit]))
        self.stories.append(story)

    @precondition(lambda self: self.stories)
    @rule(data=st.data(), picked=st.lists(picks, min_size=1, max_size=4))
    def commit_a_group(self, data, picked):
        """Several runs commit together: good, stale and refused entries."""
        stories = {self._story(pick).run_id: self._story(pick) for pick in picked}.values()
        group = [self._entry(data, story) for story in stories]
        self._both(lambda store: store.commit(group))

    def _entry(self, data, story):
        run = self._run(story)
        if run is not None and data.draw(st.integers(0, 9)) > 0:
            story.claim = run.claim
        commit_no = (run.commit_no if run else 0) + data.draw(st.sampled_from([1, 1, 1, 2, 0]))
        number = (run.next_sequence_number if run else 0) + data.draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
        windows, struck = (), ()
        if data.draw(st.booleans()):
            step_id = data.draw(st.sampled_from([None, story.step(0).id, story.step(1).id]))
            windows = (EventWindow(number, number + 1, step_id, b"frames"),)
            number += 2
        if data.draw(st.integers(0, 4)) == 0:
            struck = (story.step(data.draw(places)).id,)
        ended = data.draw(st.integers(0, 5)) == 0
        response = None
        if ended or data.draw(st.booleans()):
            output = (item(f"{story.run_id}_out"),) if ended or data.draw(st.integers(0, 9)) == 0 else ()
            response = ResponseUpdate(
                status="completed" if ended else "in_progress",
                envelope=f"{commit_no}".encode(),
                ended=ended,
                completed_at=self.now if ended else None,
                output=output,
            )
        return story.then(
            commit_no=commit_no,
            next_sequence_number=number,
            run_state=data.draw(st.sampled_from([None, "running", "queued"])),
            new_steps=self._steps(data, story),
            changed_steps=self._steps(data, story),
            struck_steps=struck,
            windows=windows,
            response=response,
            progressed=data.draw(st.booleans()),
            released=data.draw(st.integers(0, 6)) == 0,
        )

    def _steps(self, data, story):
        rows = []
        for ordinal in data.draw(st.lists(places, max_size=2, unique=True)):
            parent = data.draw(st.sampled_from([None, None, "step_above"]))
            fields = LEGAL_FIELDS[data.draw(st.sampled_from(STATES))] if data.draw(places) == 0 else {}
            state = data.draw(st.sampled_from(STATES))
            row = story.step(ordinal, state, parent_step_id=parent, updated_at=self.now)
            rows.append(msgspec.structs.replace(row, **fields))
        return tuple(rows)

    @rule(owner=st.sampled_from(OWNERS))
    def take_over(self, owner):
        """A process starts and claims everything."""
        self._both(lambda store: store.take_over(owner))

    @precondition(lambda self: self.stories)
    @rule(pick=picks, owner=st.sampled_from(OWNERS), cancel=st.booleans())
    def seize(self, pick, owner, cancel):
        """Somebody takes a run away."""
        story = self._story(pick)
        self._both(lambda store: store.seize(story.run_id, owner, cancel=cancel))

    @precondition(lambda self: self.stories)
    @rule(pick=picks)
    def delete(self, pick):
        """A response is deleted, ended or not."""
        story = self._story(pick)
        self._both(lambda store: store.delete_response(story.project, story.response_id))

    def _view(self, store, claim):
        return store if claim is None else store.under(claim)

    def _a_claim(self, pick, fenced, stale):
        if not fenced or not self.stories:
            return None
        story = self._story(pick)
        run = self._run(story)
        claim = run.claim if run is not None else story.claim
        return Claim(claim.run_id, claim.fence - stale, claim.owner)

    @rule(
        pick=picks,
        fenced=st.booleans(),
        stale=st.booleans(),
        ordinal=places,
        parent=st.sampled_from([None, "step_above"]),
        kind=st.sampled_from(list(StepKind)),
        effect=st.sampled_from(["once", "pure"]),
        own=st.booleans(),
    )
    def create_step(self, *, pick, fenced, stale, ordinal, parent, kind, effect, own):
        """A step is created by itself, in a run of the store or of nobody's."""
        claim = self._a_claim(pick, fenced, stale)
        request_id = claim.run_id if claim is not None and own else "request"
        step = CreateStepInput(
            request_id=request_id,
            ordinal=ordinal,
            step_kind=kind,
            step_sequence=ordinal,
            request_payload={"effect": effect},
            parent_step_id=parent,
        )
        found = self._both(lambda store: self._view(store, claim).create_step(step))
        if isinstance(found, str):
            self.step_ids.append(found)

    @precondition(lambda self: self.step_ids)
    @rule(
        pick=picks,
        step=picks,
        fenced=st.booleans(),
        stale=st.booleans(),
        method=st.sampled_from(
            [
                "mark_step_processing",
                "complete_step",
                "fail_step",
                "cancel_step",
                "requeue_step_for_retry",
                "get_step",
            ]
        ),
    )
    def move_step(self, pick, step, fenced, stale, method):
        """A step is moved by itself, legally or not, under a claim or none."""
        claim = self._a_claim(pick, fenced, stale)
        step_id = self.step_ids[step % len(self.step_ids)]
        payload = ({"n": pick},) if method in {"complete_step", "fail_step"} else ()
        self._both(lambda store: getattr(self._view(store, claim), method)(step_id, *payload))

    # --- what may be read ---

    @precondition(lambda self: self.stories)
    @rule(
        project=st.sampled_from(PROJECTS),
        limit=st.integers(1, 5),
        pick=st.one_of(st.none(), picks),
        order=st.sampled_from(["asc", "desc"]),
        status=st.sampled_from([None, "completed", "queued"]),
        cut=st.one_of(st.none(), st.integers(0, 37)),
    )
    def list_responses(self, *, project, limit, pick, order, status, cut):
        """A page of responses, filtered."""
        after = None if pick is None else self._story(pick).response_id
        prefix = None if cut is None else self.stories[-1].response_id[cut % 6 : cut]
        self._both(
            lambda store: store.list_responses(
                project, limit=limit, after=after, order=order, status=status, prefix=prefix
            )
        )

    @precondition(lambda self: self.stories)
    @rule(
        pick=picks,
        limit=st.integers(1, 3),
        after=st.one_of(st.none(), picks),
        order=st.sampled_from(["asc", "desc"]),
        cursor=st.integers(-1, 6),
    )
    def read_pages(self, pick, limit, after, order, cursor):
        """A page of input, and of events."""
        story = self._story(pick)
        name = None if after is None else f"msg_{after % len(self.stories)}_in"
        self._both(
            lambda store: store.input_items(
                story.project, story.response_id, limit=limit, after=name, order=order
            )
        )
        self._both(lambda store: store.events(story.response_id, cursor, limit=limit))

    @rule(project=st.sampled_from(PROJECTS), key=st.sampled_from(["k1", "k2"]), since_s=places)
    def find(self, project, key, since_s):
        """Keys and digests are looked up."""
        self._both(lambda store: store.find_by_key(project, key))
        for digest in ("digest-0", "digest-1"):
            self._both(lambda store, d=digest: store.find_by_digest(project, d, START_S + since_s))

    @invariant()
    def both_hold_the_same(self):
        """Everything that can be read of every run is the same in both."""
        for story in self.stories:
            self._both(lambda store, s=story: store.get_run(s.run_id))
            self._both(lambda store, s=story: store.list_steps(s.run_id))
            self._both(lambda store, s=story: store.read_response(s.project, s.response_id))
            self._both(lambda store, s=story: store.history(s.project, s.response_id))
            self._both(lambda store, s=story: store.events(s.response_id, -1, limit=1000))
        self._both(lambda store: store.list_steps("request"))
        ids = [f"msg_{number}_in" for number in range(len(self.stories))]
        self._both(lambda store: _by_id(store, ids))

    @invariant()
    def both_count_the_same(self):
        """Nothing is left behind in one that is gone from the other."""
        counts = [self.loop.run(store.check()) for store in (self.memory, self.sqlite)]
        for name in ("runs", "responses", "items", "steps", "event_windows"):
            assert counts[0][name] == counts[1][name], name


async def _answer(call):
    """What a call gives, with errors as values: their kind, and who they name."""
    try:
        value = await call
    except Error as error:
        value = error
    if isinstance(value, list):
        return [_as_value(one) for one in value]
    return _as_value(value)


def _as_value(value):
    if isinstance(value, Error):
        named = {name: getattr(value, name, None) for name in ("existing_id", "response_id", "body_digest")}
        return type(value).__name__, named
    return value


async def _by_id(store, ids):
    return sorted((found.id, found.data["text"]) for found in await store.get_items(ids))


StoreMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestStores = StoreMachine.TestCase
