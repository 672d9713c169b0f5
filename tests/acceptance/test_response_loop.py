"""`run_response_loop` with a user's own store: what CONTRACTS promises of the loop, one behaviour a test.

The store is the one that the examples show (`examples/dict_store.py`): sixty lines, a transition of its own.
"""

import asyncio
import json

import pytest

from antiphon import (
    AppendSteps,
    Complete,
    Fail,
    FunctionToolExecutor,
    LoopConfig,
    LoopError,
    NoOpToolExecutor,
    Pause,
    RequestContext,
    StepDescriptor,
    StepKind,
    StepState,
    StoreError,
    ToolKind,
    ToolSchema,
    UpstreamTarget,
    run_response_loop,
    tool,
)
from antiphon.domain.interruptions import Custom, Interruption
from antiphon.testing import FakeUpstream, FaultKind, ScriptedCall, Turn, answer_script, turns_script
from examples_here import example
from serving import judge, types

pytestmark = pytest.mark.anyio

RUN = "run_1"

DictStore = example("dict_store").DictStore


def asking(*, stream=True, tools=(), model="fake", text="hi"):
    """What a top-level model is asked; agents are asked with their own arguments."""

    def ask(agent_step):
        said = text if agent_step is None else agent_step.request_payload["arguments"]
        return {
            "model": model if agent_step is None else "inner",
            "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": said}]}],
            "tools": [{"type": "function", "name": name, "parameters": {}} for name in tools],
            "stream": stream,
        }

    return ask


class Listener:
    """An event sink whose `emit` is a plain function."""

    def __init__(self):
        self.events = []

    def emit(self, event):
        self.events.append(event)

    @property
    def judged(self):
        """The events as JSON objects, after the judge of streams was content with them."""
        return judge([event.to_dict() for event in self.events])


class AsyncListener(Listener):
    """An event sink whose `emit` is a coroutine function that really waits."""

    async def emit(self, event):
        await asyncio.sleep(0)
        self.events.append(event)


class Scripted:
    """A store whose transition says what it was told to say, in order, whatever the chain holds."""

    def __new__(cls, *actions):
        store = DictStore(asking())
        remaining = iter(actions)

        async def next_action_for(request_id, scope_parent):
            return next(remaining)

        store.next_action_for = next_action_for
        return store


async def run(store, upstream=None, tools=None, **options):
    target = UpstreamTarget(upstream.url if upstream else "http://127.0.0.1:1")
    return await run_response_loop(
        store,
        tools or NoOpToolExecutor(),
        options.pop("context", RequestContext()),
        target,
        request_id=options.pop("request_id", RUN),
        **options,
    )


def calls(*names):
    return tuple(ScriptedCall(name) for name in names)


def model_calls(store, scope=None):
    return [s for s in store.steps.values() if s.kind is StepKind.MODEL_CALL and s.parent_step_id == scope]


def tool_calls(store, scope=None):
    return [s for s in store.steps.values() if s.kind is StepKind.TOOL_CALL and s.parent_step_id == scope]


@tool(effect="pure")
async def look(what: str = "") -> str:
    """Look."""
    return f"seen {what}"


@tool(effect="pure")
async def broken() -> str:
    """Fail."""
    raise RuntimeError("out of order")


TOOLS = FunctionToolExecutor([look, broken])


async def test_completes_at_once_when_told_to():
    """`Complete` gives its payload, whatever it is, and no step is made."""
    for payload in ({"status": "completed"}, "just text", None, [1, 2]):
        store = Scripted(Complete(payload))
        assert await run(store) == payload
        assert store.steps == {}


async def test_completing_at_once_is_a_whole_stream():
    """Even then the listener hears a response that opens and ends."""
    listener = Listener()
    await run(Scripted(Complete("x")), event_sink=listener)
    assert types(listener.judged) == ["response.created", "response.in_progress", "response.completed"]


async def test_fails_at_once_when_told_to():
    """`Fail` raises `LoopError.Failed`, whose payload is the transition's error; the stream says failed."""
    error = {"code": "not_today", "message": "The shop is closed."}
    listener = Listener()
    with pytest.raises(LoopError.Failed, match="The shop is closed") as caught:
        await run(Scripted(Fail(error)), event_sink=listener)
    assert caught.value.payload == error
    assert isinstance(caught.value, LoopError)
    last = listener.judged[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == error


async def test_a_failure_may_be_any_value():
    """A transition that says no more than a word still fails the response properly."""
    listener = Listener()
    with pytest.raises(LoopError.Failed) as caught:
        await run(Scripted(Fail("no")), event_sink=listener)
    assert caught.value.payload == "no"
    assert listener.judged[-1]["response"]["error"]["message"] == "no"


async def test_a_model_call_goes_over_http_and_completes():
    """One request reaches a real server; its answer is the step's result."""
    async with FakeUpstream(answer_script("Forty-two.", varied=False)) as upstream:
        store = DictStore(asking(text="what is it?"))
        assert await run(store, upstream) == {"status": "completed"}
    assert [r.body["messages"][-1]["content"] for r in upstream.requests] == ["what is it?"]
    (step,) = store.steps.values()
    assert step.state is StepState.COMPLETED
    response = await store.assemble_response(RUN)
    assert response["output"][0]["content"][0]["text"] == "Forty-two."


async def test_the_step_is_marked_before_its_request_leaves():
    """When the server sees the request, the step is `processing` in the store."""
    async with FakeUpstream() as upstream:
        upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        store = DictStore(asking())
        async with asyncio.TaskGroup() as group:
            group.create_task(run(store, upstream))
            await upstream.until_hanging()
            assert [s.state for s in store.steps.values()] == [StepState.PROCESSING]
            upstream.release()


async def test_a_fan_out_records_siblings_in_order_and_runs_them_at_the_same_time():
    """Five calls are five steps in the order of the calls, and none ends before all have begun."""
    barrier = asyncio.Barrier(5)

    @tool(effect="pure")
    async def meet(place: int) -> str:
        """Wait for the others."""
        await asyncio.wait_for(barrier.wait(), 10)
        return f"met at {place}"

    fan = tuple(ScriptedCall("meet", {"place": place}) for place in range(5))
    async with FakeUpstream(turns_script([Turn(calls=fan), Turn(text="All met.")])) as upstream:
        store = DictStore(asking(tools=["meet"]))
        await run(store, upstream, FunctionToolExecutor([meet]))
    siblings = tool_calls(store)
    assert [json.loads(s.request_payload["arguments"])["place"] for s in siblings] == [0, 1, 2, 3, 4]
    assert [s.ordinal for s in siblings] == [1, 2, 3, 4, 5]
    assert [s.sequence for s in siblings] == sorted(s.sequence for s in siblings)
    assert {s.prev_step_id for s in siblings} == {model_calls(store)[0].id}
    assert [s.response_payload["output"] for s in siblings] == [f"met at {place}" for place in range(5)]


async def test_siblings_are_bounded_by_the_configuration():
    """`parallel_tools` is the most that run at once."""
    running = most = 0

    @tool(effect="pure")
    async def count() -> int:
        """Count who is here."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return most

    script = turns_script([Turn(calls=calls(*["count"] * 7)), Turn(text="Done.")])
    async with FakeUpstream(script) as upstream:
        tools = FunctionToolExecutor([count])
        await run(DictStore(asking()), upstream, tools, config=LoopConfig(parallel_tools=2))
    assert most == 2


async def test_a_failing_step_is_stored_and_the_loop_goes_on():
    """A tool's failure is its step's error, the model hears of it, and its sibling's result stays."""
    script = turns_script([Turn(calls=calls("broken", "look")), Turn(text="I see.")])
    async with FakeUpstream(script) as upstream:
        store = DictStore(asking())
        assert await run(store, upstream, TOOLS) == {"status": "completed"}
    failed, fine = tool_calls(store)
    assert failed.state is StepState.FAILED
    assert failed.error["code"] == "tool_execution_error"
    assert "out of order" in failed.error["message"]
    assert failed.response_payload is None
    assert fine.state is StepState.COMPLETED
    heard = [m["content"] for m in upstream.requests[1].body["messages"] if m["role"] == "tool"]
    assert "out of order" in heard[0]
    assert "seen" in heard[1]


async def test_an_unknown_tool_fails_its_step():
    """A name that no executor has is a failed step with `tool_not_found`; the model hears of it."""
    script = turns_script([Turn(calls=calls("look", "nowhere")), Turn(text="I see.")])
    async with FakeUpstream(script) as upstream:
        store = DictStore(asking())
        await run(store, upstream, TOOLS)
    assert [s.state for s in tool_calls(store)] == [StepState.COMPLETED, StepState.FAILED]
    assert tool_calls(store)[1].error["code"] == "tool_not_found"


async def test_a_failing_model_call_fails_the_response_when_the_transition_says_so():
    """The upstream's refusal is the step's error, and the transition decides what that means."""
    async with FakeUpstream() as upstream:
        upstream.inject(*[FaultKind.GARBAGE] * 20)
        store = DictStore(asking(stream=False))
        listener = Listener()
        with pytest.raises(LoopError.Failed) as caught:
            await run(store, upstream, event_sink=listener)
    (step,) = store.steps.values()
    assert step.state is StepState.FAILED
    assert caught.value.payload == step.error
    assert types(listener.judged)[-2:] == ["error", "response.failed"]


async def test_the_iteration_cap_ends_it():
    """After so many model calls the loop raises; what was done stays, and the stream ends `incomplete`."""
    async with FakeUpstream(lambda _request: Turn(calls=calls("look"))) as upstream:
        store = DictStore(asking())
        listener = Listener()
        config = LoopConfig(max_response_iterations=3)
        with pytest.raises(LoopError.MaxIterationsExceeded):
            await run(store, upstream, TOOLS, config=config, event_sink=listener)
    assert len(upstream.requests) == len(model_calls(store)) == 3
    assert all(s.state is StepState.COMPLETED for s in store.steps.values())
    assert listener.judged[-1]["response"]["incomplete_details"] == {"reason": "max_iterations"}


async def test_the_iteration_cap_counts_what_was_done_before():
    """A loop that is called again has no more iterations than it had left."""
    async with FakeUpstream(lambda _request: Turn(calls=calls("look"))) as upstream:
        store = DictStore(asking())
        for _ in range(3):
            with pytest.raises(LoopError.MaxIterationsExceeded):
                await run(store, upstream, TOOLS, config=LoopConfig(max_response_iterations=2))
    assert len(upstream.requests) == 2


async def test_a_transition_that_only_appends_tools_is_capped_too():
    """A transition that never comes back to its model does not run for ever."""
    store = DictStore(asking())
    asked = 0

    async def next_action_for(request_id, scope_parent):
        nonlocal asked
        asked += 1
        payload = {"call_id": f"c{asked}", "name": "look", "arguments": "{}"}
        return AppendSteps([StepDescriptor(StepKind.TOOL_CALL, payload, asked)])

    store.next_action_for = next_action_for
    with pytest.raises(LoopError.MaxIterationsExceeded):
        await run(store, None, TOOLS, config=LoopConfig(max_response_iterations=4))
    assert len(store.steps) == 4


class Agents:
    """An executor of agents, nested as deep as one likes; their names say that they are agents."""

    def __init__(self, *names):
        self.names = names
        self.executed = []

    async def tools(self, ctx):
        inside = {"model": "inner", "tools": self.names}
        return [ToolSchema(name=name, kind=ToolKind.AGENT, agent=inside) for name in self.names]

    async def execute(self, tool_name, tool_call_id, arguments, ctx):
        self.executed.append(tool_name)
        raise AssertionError("an agent is driven by the loop, not executed")


async def test_an_agent_tool_recurses_with_its_own_scope():
    """The agent's steps stand under its tool step, its text is the tool's output, its words are not told."""

    def script(request):
        if request.body["model"] == "inner":
            return Turn(text="It is sunny.", varied=False)
        return (
            Turn(text="Sunny, then.") if request.turn else Turn(calls=(ScriptedCall("scout", {"q": "sun?"}),))
        )

    agents = Agents("scout")
    async with FakeUpstream(script) as upstream:
        store = DictStore(asking())
        listener = Listener()
        await run(store, upstream, agents, event_sink=listener)
    (agent,) = tool_calls(store)
    (inside,) = model_calls(store, agent.id)
    assert inside.ordinal == 0
    assert agent.response_payload == {"output": "It is sunny."}
    assert agents.executed == []
    assert [r.body["model"] for r in upstream.requests] == ["fake", "inner", "fake"]
    assert "sun?" in upstream.requests[1].body["messages"][0]["content"]
    told = listener.judged
    assert not any("It is sunny." in event.get("delta", "") for event in told)
    assert len([t for t in types(told) if t == "response.output_item.done"]) == 2


@pytest.mark.parametrize("kind", [ToolKind.HTTP, ToolKind.FUNCTION, ToolKind.MCP])
async def test_other_tools_go_through_the_executor(kind):
    """A tool of any other kind is handed to the executor, with decoded arguments and the step's id as key."""

    class Executor:
        def __init__(self):
            self.got = []

        async def tools(self, ctx):
            return [ToolSchema(name="fetch", kind=kind)]

        async def execute(self, tool_name, tool_call_id, arguments, ctx):
            self.got.append((tool_name, tool_call_id, arguments, ctx))
            return {"status": 200}

    executor = Executor()
    context = RequestContext("fake").with_extension(42)
    script = turns_script([Turn(calls=(ScriptedCall("fetch", {"path": "/x"}),)), Turn(text="Got it.")])
    async with FakeUpstream(script) as upstream:
        store = DictStore(asking())
        await run(store, upstream, executor, context=context)
    (step,) = tool_calls(store)
    assert executor.got == [("fetch", step.id, {"path": "/x"}, context)]
    assert json.loads(step.response_payload["output"]) == {"status": 200}


async def test_appending_no_steps_is_an_empty_action():
    """`AppendSteps([])` could never lead anywhere: it is an error, told as a failed response."""
    listener = Listener()
    with pytest.raises(LoopError.EmptyAction):
        await run(Scripted(AppendSteps([])), event_sink=listener)
    assert types(listener.judged)[-1] == "response.failed"


class _FailsAt:
    """Makes the n-th write of a store fail, once."""

    def __init__(self, store, method, at=1, error=None):
        self.remaining = at
        original = getattr(store, method)

        async def failing(*args):
            self.remaining -= 1
            if self.remaining == 0:
                raise error or StoreError("the disk is full")
            return await original(*args)

        setattr(store, method, failing)


@pytest.mark.parametrize(
    ("method", "at"),
    [
        ("record_step", 1), ("mark_step_processing", 1), ("complete_step", 1), ("list_chain", 1),
        ("record_step", 2), ("mark_step_processing", 2), ("complete_step", 2), ("next_action_for", 2),
        ("record_step", 3), ("mark_step_processing", 3), ("complete_step", 3), ("next_action_for", 3),
        ("record_step", 4), ("mark_step_processing", 4), ("complete_step", 4),
    ],
)  # fmt: skip
async def test_a_store_error_leaves_the_chain_resumable(method, at):
    """Whichever call of the store fails, it is `LoopError.Store`; called again the loop joins its chain.

    It never starts a parallel one: every place is there once, no ended step runs again, and the answer is
    the one that an undisturbed run gives.
    """
    script = turns_script([Turn(calls=calls("look", "look")), Turn(text="Done.", varied=False)])
    async with FakeUpstream(script) as upstream:
        store = DictStore(asking())
        _FailsAt(store, method, at)
        with pytest.raises(LoopError.Store, match="the disk is full") as caught:
            await run(store, upstream, TOOLS)
        assert isinstance(caught.value.__cause__, StoreError)
        ended = {s.id: s for s in store.steps.values() if s.state.is_terminal}
        assert await run(store, upstream, TOOLS) == {"status": "completed"}
    assert {i: store.steps[i] for i in ended} == ended
    assert [(s.kind, s.ordinal) for s in sorted(store.steps.values(), key=lambda s: s.ordinal)] == [
        (StepKind.MODEL_CALL, 0),
        (StepKind.TOOL_CALL, 1),
        (StepKind.TOOL_CALL, 2),
        (StepKind.MODEL_CALL, 3),
    ]
    assert all(s.state is StepState.COMPLETED for s in store.steps.values())
    response = await store.assemble_response(RUN)
    assert [i["type"] for i in response["output"]] == ["mcp_call", "mcp_call", "message"]


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("action", [Complete("x"), Fail("x"), AppendSteps([])])
async def test_a_store_error_at_either_end_is_one_too(action, at):
    """The store is asked for the response when its stream opens and when it ends: that may fail as well."""
    store = Scripted(action)
    _FailsAt(store, "assemble_response", at)
    with pytest.raises(LoopError.Store):
        await run(store, event_sink=Listener())


async def test_a_store_error_tells_no_ending():
    """The response has not ended: its stream has no terminal event, and the resumed one has the only one."""
    listener = Listener()
    async with FakeUpstream(turns_script([Turn(calls=calls("look")), Turn(text="Done.")])) as upstream:
        store = DictStore(asking())
        _FailsAt(store, "mark_step_processing", 3)
        with pytest.raises(LoopError.Store):
            await run(store, upstream, TOOLS, event_sink=listener)
    assert not any(event.is_terminal for event in listener.events)


async def test_a_resumed_loop_tells_a_valid_stream():
    """Who listens to the second call hears a whole stream of its own, whose end has all of the output."""
    listener = Listener()
    script = turns_script([Turn(text="Let me look.", calls=calls("look", "look")), Turn(text="Done.")])
    async with FakeUpstream(script) as upstream:
        store = DictStore(asking())
        _FailsAt(store, "mark_step_processing", 4)
        with pytest.raises(LoopError.Store):
            await run(store, upstream, TOOLS)
        await run(store, upstream, TOOLS, event_sink=listener)
    told = judge([event.to_dict() for event in listener.events], deltas_optional=True)
    kinds = [item["type"] for item in told[-1]["response"]["output"]]
    assert kinds == ["message", "mcp_call", "mcp_call", "message"]


async def test_resuming_a_finished_chain_asks_nobody():
    """Called once more after its end, the loop gives the same payload without a request."""
    async with FakeUpstream() as upstream:
        store = DictStore(asking())
        first = await run(store, upstream)
        assert await run(store, upstream) == first
        assert len(upstream.requests) == 1


async def test_two_requests_in_one_store_do_not_meet():
    """Chains of different requests are driven side by side in one store."""
    script = turns_script([Turn(calls=calls("look")), Turn(text="Done.")])
    async with FakeUpstream(script) as upstream:
        store = DictStore(asking())
        await asyncio.gather(*(run(store, upstream, TOOLS, request_id=f"run_{n}") for n in range(8)))
        for n in range(8):
            assert [s.ordinal for s in await store.list_chain(f"run_{n}", None)] == [0, 1, 2]
    assert len(store.steps) == 24


async def test_ids_of_different_steps_differ_whatever_the_stores_ids_look_like():
    """A store names its steps as it likes; items of two steps never share an id, nor their calls."""
    script = turns_script([Turn(calls=calls("look")), Turn(calls=calls("look")), Turn(text="Done.")])
    listener = Listener()
    async with FakeUpstream(script) as upstream:
        store = DictStore(asking())
        request_id = "a-name-that-is-longer-than-twenty-four-characters"
        await run(store, upstream, TOOLS, request_id=request_id, event_sink=listener)
        output = (await store.assemble_response(request_id))["output"]
    assert len({item["id"] for item in output}) == len(output) == 3
    first, second = (s.request_payload["call_id"] for s in tool_calls(store))
    assert first != second
    assert listener.judged[-1]["response"]["output"] == output


@pytest.mark.parametrize("listening", [Listener, AsyncListener])
async def test_streaming_forwards_deltas_and_one_terminal_event(listening):
    """Token by token as the model says them, from a plain and from an async sink; one end, the last event."""
    listener = listening()
    async with FakeUpstream(answer_script("one two three four", varied=False)) as upstream:
        await run(DictStore(asking(stream=True)), upstream, event_sink=listener)
    told = listener.judged
    deltas = [event["delta"] for event in told if event["type"] == "response.output_text.delta"]
    assert deltas == ["one ", "two ", "three ", "four"]
    assert [event.is_terminal for event in listener.events] == [False] * (len(told) - 1) + [True]
    assert upstream.requests[0].body["stream"] is True


async def test_deltas_are_told_while_the_model_still_speaks():
    """The first words are heard before the last have been said."""
    heard = asyncio.Event()

    class Hearing(Listener):
        def emit(self, event):
            super().emit(event)
            if event.type == "response.output_text.delta":
                heard.set()

    listener = Hearing()
    async with FakeUpstream(answer_script("one two three")) as upstream:
        upstream.inject(FaultKind.HANG_MID_STREAM)
        async with asyncio.TaskGroup() as group:
            group.create_task(run(DictStore(asking(stream=True)), upstream, event_sink=listener))
            await upstream.until_hanging()
            await asyncio.wait_for(heard.wait(), 10)
            assert not any(event.is_terminal for event in listener.events)
            upstream.release()
    assert listener.judged[-1]["type"] == "response.completed"


async def test_a_model_call_that_is_not_streamed_emits_no_deltas():
    """Its items are told whole: opened, done, no delta between."""
    listener = Listener()
    script = turns_script([Turn(reasoning="Hm.", text="Wait.", calls=calls("look")), Turn(text="Done.")])
    async with FakeUpstream(script) as upstream:
        await run(DictStore(asking(stream=False)), upstream, TOOLS, event_sink=listener)
    told = judge([event.to_dict() for event in listener.events], deltas_optional=True)
    assert not [kind for kind in types(told) if kind.endswith(".delta")]
    assert types(told).count("response.output_text.done") == 2
    assert not upstream.requests[0].body.get("stream")


async def test_a_tools_end_emits_its_item():
    """The `mcp_call` item that opened with the call is done with the tool's result, or its error."""
    listener = Listener()
    script = turns_script(
        [Turn(calls=(ScriptedCall("look", {"what": "sea"}), ScriptedCall("broken"))), Turn(text="So.")]
    )
    async with FakeUpstream(script) as upstream:
        await run(DictStore(asking()), upstream, TOOLS, event_sink=listener)
    told = listener.judged
    done = {
        e["item"]["name"]: e["item"]
        for e in told
        if e["type"] == "response.output_item.done" and "name" in e["item"]
    }
    assert done["look"]["output"] == "seen sea"
    assert done["look"]["status"] == "completed"
    assert done["broken"]["output"] is None
    assert done["broken"]["error"]["type"] == "mcp_tool_execution_error"
    assert "response.mcp_call.completed" in types(told)
    assert "response.mcp_call.failed" in types(told)
    assert [i for i in told[-1]["response"]["output"] if i["type"] == "mcp_call"] == [
        done["look"],
        done["broken"],
    ]


async def test_the_depth_cap_fails_the_step_not_the_response():
    """An agent below the deepest level fails with `max_depth_exceeded`; whoever called it goes on."""

    def script(request):
        if request.body["model"] == "inner":
            return Turn(text="Nobody there.") if request.turn else Turn(calls=calls("deeper"))
        return Turn(text="Well.") if request.turn else Turn(calls=calls("deep"))

    async with FakeUpstream(script) as upstream:
        store = DictStore(asking())
        listener = Listener()
        config = LoopConfig(max_response_step_depth=2)
        payload = await run(store, upstream, Agents("deep", "deeper"), config=config, event_sink=listener)
    assert payload == {"status": "completed"}
    (deep,) = tool_calls(store)
    (deeper,) = tool_calls(store, deep.id)
    assert deep.state is StepState.COMPLETED
    assert deeper.state is StepState.FAILED
    assert deeper.error["code"] == "max_depth_exceeded"
    assert listener.judged[-1]["type"] == "response.completed"


async def test_a_loop_may_start_below_the_top():
    """`depth` and `scope_parent` say where the scope hangs: the cap counts from there."""
    script = turns_script([Turn(calls=calls("deep")), Turn(text="Well.")])
    async with FakeUpstream(script) as upstream:
        store = DictStore(asking())
        config = LoopConfig(max_response_step_depth=4)
        await run(store, upstream, Agents("deep"), config=config, scope_parent="elsewhere", depth=3)
    (step,) = tool_calls(store, "elsewhere")
    assert step.error["code"] == "max_depth_exceeded"


async def test_a_loop_called_too_deep_does_not_start():
    """Whoever calls it at the cap or below is told so, and nothing is recorded."""
    store = DictStore(asking())
    with pytest.raises(LoopError.MaxDepthExceeded):
        await run(store, scope_parent="elsewhere", depth=8)
    with pytest.raises(LoopError.MaxDepthExceeded):
        await run(store, config=LoopConfig(max_response_step_depth=2), scope_parent="elsewhere", depth=3)
    assert store.steps == {}


async def test_an_executor_that_cannot_name_its_tools_ends_the_loop():
    """Before anything is asked or recorded, with the reason as the cause."""

    class Unplugged:
        async def tools(self, ctx):
            raise ConnectionError("the tool server is away")

    store = DictStore(asking())
    with pytest.raises(LoopError.Executor, match="the tool server is away") as caught:
        await run(store, None, Unplugged())
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert store.steps == {}


async def test_a_pause_raises_what_must_be_answered():
    """`Pause` ends the call with the questions; the chain stays as it is, to be driven again."""
    question = Interruption(kind=Custom(), payload={"ask": "sure?"})
    store = Scripted(Pause([question]), Complete("x"))
    with pytest.raises(LoopError.Interrupted) as caught:
        await run(store)
    assert caught.value.interruptions == (question,)
    assert await run(store) == "x"


async def test_a_failed_agent_fails_its_step_not_the_response():
    """An agent that runs out of iterations is a failed tool for its caller."""

    def script(request):
        if request.body["model"] == "inner":
            return Turn(calls=calls("nothing"))
        return Turn(text="Well.") if request.turn else Turn(calls=calls("scout"))

    async with FakeUpstream(script) as upstream:
        store = DictStore(asking())
        config = LoopConfig(max_response_iterations=2)
        assert await run(store, upstream, Agents("scout"), config=config) == {"status": "completed"}
    assert tool_calls(store)[0].error["code"] == "max_iterations"


@pytest.mark.parametrize(("key", "sent"), [("", None), (None, None), ("sk-1", "Bearer sk-1")])
async def test_an_empty_key_sends_no_authorization(key, sent):
    """The Authorization header is there exactly when there is a key."""
    async with FakeUpstream() as upstream:
        target = UpstreamTarget(upstream.url, "/v1/chat/completions", key)
        store = DictStore(asking())
        await run_response_loop(store, NoOpToolExecutor(), RequestContext(), target, request_id=RUN)
    assert upstream.requests[0].headers.get("authorization") == sent


async def test_the_model_may_be_a_client_of_ones_own():
    """`model_target` may be anything that answers `call`; it is not closed by the loop."""
    from antiphon import InferenceFinished, TextDelta

    class Parrot:
        async def call(self, request):
            yield TextDelta(request.input[-1]["content"][0]["text"])
            yield InferenceFinished()

    store = DictStore(asking(text="Polly"))
    listener = Listener()
    await run_response_loop(
        store, NoOpToolExecutor(), RequestContext(), Parrot(), request_id=RUN, event_sink=listener
    )
    assert listener.judged[-1]["response"]["output"][0]["content"][0]["text"] == "Polly"


async def test_calls_without_tools_of_ours_are_the_clients():
    """With `NoOpToolExecutor` every call is told as a `function_call`, for the client to run."""
    listener = Listener()
    async with FakeUpstream(answer_script("", calls=calls("theirs"))) as upstream:
        store = DictStore(asking(tools=["theirs"]))
        with pytest.raises(LoopError.MaxIterationsExceeded):
            await run(store, upstream, event_sink=listener, config=LoopConfig(max_response_iterations=1))
    added = [e["item"]["type"] for e in listener.judged if e["type"] == "response.output_item.added"]
    assert added == ["function_call"]


async def test_cancelling_the_caller_stops_everything_it_started():
    """A cancelled loop leaves no tool running behind it."""
    started, ended = asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def wait() -> str:
        """Wait for ever."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    async with FakeUpstream(answer_script("", calls=calls("wait", "wait"))) as upstream:
        store = DictStore(asking())
        task = asyncio.create_task(run(store, upstream, FunctionToolExecutor([wait])))
        await asyncio.wait_for(started.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()
    assert all(s.state is StepState.PROCESSING for s in tool_calls(store))
