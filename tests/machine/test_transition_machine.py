"""The transition, driven to the end over random answers, outcomes and crashes.

A world is fixed beforehand: what each model call answers, how each tool call ends. Whatever is cut off
where, the chain that is reached in the end must be the one that an undisturbed run reaches.
"""

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon import (
    AppendSteps,
    CallDelta,
    ChainStep,
    Complete,
    Fail,
    InferenceFinished,
    LoopConfig,
    LoopError,
    RequestContext,
    StepKind,
    StepState,
    StoreError,
    TextDelta,
    ToolError,
    ToolSchema,
    Usage,
    run_response_loop,
)
from antiphon.core.transition import Rules, next_action, spent_on, turns_of
from antiphon.domain.steps import LEGAL_MOVES
from antiphon.testing import check_stream
from chains import answered, call, message
from examples_here import example

DictStore = example("dict_store").DictStore

FINISH = ["stop", "stop", "stop", "tool_calls", "length", "content_filter"]


@st.composite
def answers(draw):
    """What a model says: text, calls of ours and of the client in any order; or nothing, or an error."""
    if draw(st.integers(0, 19)) == 0:
        return None
    kinds = draw(st.lists(st.sampled_from(["ours", "ours", "ours", "theirs", "text"]), max_size=5))
    return {
        "kinds": kinds,
        "finish": draw(st.sampled_from(FINISH)),
        "tokens": draw(st.integers(0, 30)),
    }


@st.composite
def worlds(draw):
    return World(
        rules=Rules(
            model="m",
            max_tool_calls=draw(st.none() | st.integers(1, 6)),
            max_output_tokens=draw(st.none() | st.integers(16, 80)),
        ),
        answers=draw(st.lists(answers(), max_size=5)),
        failing=draw(st.sets(st.integers(0, 40))),
    )


class World:
    """Fixed answers and outcomes; after the last answer the model says nothing more."""

    def __init__(self, rules, answers, failing):
        self.rules = rules
        self.answers = answers
        self.failing = failing

    def __repr__(self):
        return f"World({self.rules}, {self.answers}, failing={sorted(self.failing)})"

    def end(self, step, chain):
        """The step as it ends."""
        if step.kind is StepKind.TOOL_CALL:
            if step.ordinal in self.failing:
                return replace(step, state=StepState.FAILED, error={"code": "x", "message": "no"})
            return replace(
                step, state=StepState.COMPLETED, response_payload={"output": step.request_payload["call_id"]}
            )
        number = sum(s.kind is StepKind.MODEL_CALL and s.ordinal < step.ordinal for s in chain)
        said = (
            self.answers[number]
            if number < len(self.answers)
            else {"kinds": ["text"], "finish": "stop", "tokens": 1}
        )
        if said is None:
            return replace(step, state=StepState.FAILED, error={"code": "upstream", "message": "no"})
        items = [
            message(f"{step.ordinal}.{n}")
            if kind == "text"
            else call(f"c{step.ordinal}.{n}", ours=kind == "ours")
            for n, kind in enumerate(said["kinds"])
        ]
        whole = answered(step.ordinal, *items, finish=said["finish"], output_tokens=said["tokens"])
        return replace(step, state=StepState.COMPLETED, response_payload=whole.response_payload)


class Driver:
    """Does what the transition says, one small change after the other; `states` are the chains between."""

    def __init__(self, world, chain=(), *, backwards=False):
        self.world = world
        self.chain = list(chain)
        self.backwards = backwards
        self.states = [tuple(self.chain)]
        self.last = None

    def put(self, step):
        """Insert a step, or put a moved one in its place; places are unique and moves legal."""
        for at, known in enumerate(self.chain):
            if known.ordinal == step.ordinal:
                assert (known.kind, known.request_payload) == (step.kind, step.request_payload)
                assert step.state in LEGAL_MOVES[known.state]
                self.chain[at] = step
                break
        else:
            assert step.state is StepState.PENDING
            self.chain.append(step)
            self.chain.sort(key=lambda s: s.ordinal)
        self.states.append(tuple(self.chain))

    def step(self):
        """One round; False when the transition says that it is over."""
        before = tuple(self.chain)
        action = next_action(self.world.rules, before, spent_on(before))
        assert action == next_action(self.world.rules, before, spent_on(before))
        assert before == tuple(self.chain)
        self.last = action
        if not isinstance(action, AppendSteps):
            return False
        self.check(action)
        for wanted in action.steps:
            known = next((s for s in self.chain if s.ordinal == wanted.ordinal), None)
            if known is None:
                self.put(_new(wanted))
            else:
                assert not known.state.is_terminal, "an ended step is never asked for again"
                assert known.request_payload == wanted.request_payload
        ordinals = [s.ordinal for s in action.steps]
        for ordinal in reversed(ordinals) if self.backwards else ordinals:
            step = next(s for s in self.chain if s.ordinal == ordinal)
            if step.state is StepState.PENDING:
                step = replace(step, state=StepState.PROCESSING)
                self.put(step)
            self.put(self.world.end(step, self.chain))
        return True

    def check(self, action):
        """What must hold of every round."""
        assert action.steps
        kinds = {s.kind for s in action.steps}
        assert len(kinds) == 1
        assert len({s.ordinal for s in action.steps}) == len(action.steps)
        spent = spent_on(self.chain)
        rules = self.world.rules
        if kinds == {StepKind.MODEL_CALL}:
            assert len(action.steps) == 1
            again = any(s.ordinal == action.steps[0].ordinal for s in self.chain)
            if rules.max_output_tokens is not None and not again:
                assert spent.usage.output_tokens < rules.max_output_tokens or not self.chain
            assert all(s.state.is_terminal for s in self.chain if s.ordinal < action.steps[0].ordinal)
        else:
            call_ids = [s.request_payload["call_id"] for s in action.steps]
            assert len(set(call_ids)) == len(call_ids)

    def run(self):
        rounds = 0
        while self.step():
            rounds += 1
            assert rounds < 50
        return self

    @property
    def outcome(self):
        """What the run amounts to, without how it got there."""
        return self.last, [
            (s.ordinal, s.kind, s.state, s.request_payload, s.response_payload, s.error) for s in self.chain
        ]


def _new(descriptor):
    return ChainStep(
        id=f"step_{descriptor.ordinal}",
        kind=descriptor.kind,
        state=StepState.PENDING,
        sequence=descriptor.ordinal,
        ordinal=descriptor.ordinal,
        request_payload=descriptor.request_payload,
    )


@settings(max_examples=200, deadline=None)
@given(worlds())
def test_a_run_keeps_its_rules(world):
    """Every place once, every call of ours at most once and by its id, budgets kept, and an end."""
    run = Driver(world).run()
    assert isinstance(run.last, Complete | Fail)
    ordinals = [s.ordinal for s in run.chain]
    assert ordinals == sorted(set(ordinals))
    tool_steps = [s for s in run.chain if s.kind is StepKind.TOOL_CALL]
    if world.rules.max_tool_calls is not None:
        assert len(tool_steps) <= world.rules.max_tool_calls
    for turn in turns_of(run.chain):
        payload = turn.model_call.response_payload
        ours = [i["call_id"] for i in (payload or {}).get("output", ()) if "server_label" in i]
        ran = [s.request_payload["call_id"] for s in turn.tool_calls]
        assert ran == [c for c in ours if c in ran], "in the order of the calls, none that was not asked for"
        assert [s.ordinal - turn.model_call.ordinal - 1 for s in turn.tool_calls] == [
            ours.index(c) for c in ran
        ]
        if payload and payload["finish_reason"] in {"length", "content_filter"}:
            assert not turn.tool_calls
    match run.last:
        case Complete({"status": "completed"}):
            assert all(s.state.is_terminal for s in run.chain)
        case Complete({"status": "incomplete", "incomplete_details": {"reason": reason}}):
            assert reason in {"max_tool_calls", "max_output_tokens", "content_filter"}
        case Fail(error):
            assert error["code"] == "upstream"
        case other:
            raise AssertionError(other)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.booleans())
def test_a_restart_at_any_moment_comes_to_the_same_end(world, requeued):
    """Cut off after any change whatever, siblings ending in another order: the same chain, the same end."""
    whole = Driver(world).run()
    for state in whole.states:
        left = [
            replace(s, state=StepState.PENDING) if requeued and s.state is StepState.PROCESSING else s
            for s in state
        ]
        resumed = Driver(world, left, backwards=True).run()
        assert resumed.outcome == whole.outcome
        assert len(resumed.chain) == len(whole.chain)


class Model:
    """The world's model as an inference client; counts how often it was asked."""

    def __init__(self, world):
        self.world = world
        self.asked = 0

    async def call(self, request):
        self.asked += 1
        number = request.params["number"]
        said = self.world.answers[number] if number < len(self.world.answers) else None
        for n, kind in enumerate(said["kinds"] if said else ["text"]):
            if kind == "text":
                yield TextDelta("said ")
            else:
                yield CallDelta(n, "look" if kind == "ours" else "ask_user", f'{{"n":{n}}}')
        tokens = said["tokens"] if said else 1
        yield InferenceFinished(
            said["finish"] if said else "stop", Usage(output_tokens=tokens, total_tokens=tokens)
        )


class Tools:
    def __init__(self, world):
        self.world = world
        self.ran = []

    async def tools(self, ctx):
        return [ToolSchema(name="look", effect="pure")]

    async def execute(self, tool_name, tool_call_id, arguments, ctx):
        self.ran.append(tool_call_id)
        if int(tool_call_id.rpartition("/")[2]) in self.world.failing:
            raise ToolError.ExecutionError("no")
        return arguments


class Hearing:
    def __init__(self):
        self.events = []

    def emit(self, event):
        self.events.append(event)


class FailingStore(DictStore):
    """A dict store with the engine's transition, that fails at its n-th call."""

    def __init__(self, world):
        super().__init__(ask=lambda _step: {"model": "m"})
        self.world = world
        self.calls = 0
        self.fails_at = None

    def tick(self):
        self.calls += 1
        if self.calls == self.fails_at:
            raise StoreError("gone")

    async def next_action_for(self, request_id, scope_parent):
        self.tick()
        chain = await super().list_chain(request_id, scope_parent)
        action = next_action(self.world.rules, chain, spent_on(chain))
        if isinstance(action, AppendSteps) and action.steps[0].kind is StepKind.MODEL_CALL:
            number = sum(s.kind is StepKind.MODEL_CALL and s.ordinal < action.steps[0].ordinal for s in chain)
            tools = [{"type": "function", "name": name, "parameters": {}} for name in ("look", "ask_user")]
            asked = {"model": "m", "input": [], "tools": tools, "params": {"number": number}}
            return AppendSteps([replace(action.steps[0], request_payload=asked)])
        return action

    async def record_step(self, *args):
        self.tick()
        return await super().record_step(*args)

    async def mark_step_processing(self, *args):
        self.tick()
        return await super().mark_step_processing(*args)

    async def complete_step(self, *args):
        self.tick()
        return await super().complete_step(*args)

    async def fail_step(self, *args):
        self.tick()
        return await super().fail_step(*args)


async def _drive(world, config, fails_at):
    store, model, tools = FailingStore(world), Model(world), Tools(world)
    store.fails_at = fails_at
    attempts = 0
    while True:
        attempts += 1
        heard = Hearing()
        try:
            ended = await run_response_loop(
                store, tools, RequestContext(), model, request_id="run_1", config=config, event_sink=heard
            )
        except LoopError.Store:
            assert attempts == 1
        except LoopError as error:
            ended = type(error).__name__
        else:
            pass
        if attempts == 2 or store.fails_at is None or store.calls < store.fails_at:
            told = [event.to_dict() for event in heard.events]
            assert not check_stream(told, deltas_optional=True)
            return ended, store, model, tools
        store.fails_at = None


def _amounts_to(ended, store):
    steps = sorted(store.steps.values(), key=lambda s: s.ordinal)
    return ended, [(s.id, s.kind, s.state, s.response_payload, s.error) for s in steps]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.integers(1, 5))
def test_the_loop_comes_to_the_same_end_whichever_call_of_its_store_fails(world, iterations):
    """The real loop, its store failing once, at every call in turn; called again it ends as if nothing was.

    Nothing that had ended runs again, and the iterations of both calls together stay within the limit.
    """
    world.answers = [a for a in world.answers if a is not None]
    config = LoopConfig(max_response_iterations=iterations)

    async def all_of_them():
        ended, store, model, tools = await _drive(world, config, None)
        whole = _amounts_to(ended, store)
        assert sum(s.kind is StepKind.MODEL_CALL for s in store.steps.values()) <= iterations
        for fails_at in range(1, store.calls + 1):
            ended, broken, asked_again, ran_again = await _drive(world, config, fails_at)
            assert _amounts_to(ended, broken) == whole
            assert asked_again.asked <= model.asked + 1
            assert len(ran_again.ran) - len(tools.ran) <= max(1, len(tools.ran))
            assert set(ran_again.ran) == set(tools.ran)

    asyncio.run(all_of_them())
