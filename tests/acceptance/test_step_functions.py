"""The composable step functions, on both stores: each alone, a whole turn, and a loop made of them."""

import asyncio
import itertools
import json

import pytest

import antiphon
from antiphon import (
    CallDelta,
    ChatCompletionsClient,
    Conversation,
    CreateStepInput,
    DuplicateStep,
    ExecutionContext,
    FunctionToolExecutor,
    InferenceError,
    InferenceFinished,
    InferenceRequest,
    Item,
    LoopConfig,
    LoopError,
    RequestContext,
    RequestError,
    Response,
    StepAlreadyTerminal,
    StepKind,
    StepState,
    StoreError,
    TextDelta,
    ToolCall,
    ToolContext,
    UpstreamTarget,
    assemble_response,
    call_inference,
    dispatch_tools,
    execute,
    open_store,
    persist_response,
    rehydrate_conversation,
    tool,
)
from antiphon.testing import FakeUpstream, FaultKind, ScriptedCall, Turn, turns_script
from examples_here import example
from serving import judge_response

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite"])
async def store(request, tmp_path):
    """An open store of each kind."""
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'work.db'}"
    opened = open_store(url)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def upstream():
    """A model that looks twice and then answers."""
    looks = (ScriptedCall("look", {"what": "sea"}), ScriptedCall("look", {"what": "sky"}))
    script = turns_script([Turn(text="Let me see.", calls=looks), Turn(text="Blue, both.", varied=False)])
    async with FakeUpstream(script) as server:
        yield server


@pytest.fixture
async def client(upstream):
    async with ChatCompletionsClient(UpstreamTarget(upstream.url)) as made:
        yield made


@tool(effect="pure")
def look(what: str) -> str:
    """Look at something."""
    return f"the {what} is blue"


@pytest.fixture
def ctx(store, client):
    return ExecutionContext(store, client, FunctionToolExecutor([look]))


def user(text, item_id="msg_u"):
    content = [{"type": "input_text", "text": text}]
    return {"id": item_id, "type": "message", "role": "user", "status": "completed", "content": content}


def said(text, item_id="msg_a"):
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {"id": item_id, "type": "message", "role": "assistant", "status": "completed", "content": content}


async def kept(ctx, response_id, text, previous=None, **metadata):
    """A response written with the step functions alone."""
    message = user(f"{text}?", f"msg_u_{text}")
    response = assemble_response(
        response_id,
        [said(f"{text}.", f"msg_a_{text}")],
        "fake",
        {"input_items": (Item(message["id"], message),), "previous_response_id": previous, **metadata},
    )
    await persist_response(response, None, previous, ctx)
    return response


async def test_rehydrating_nothing_is_an_empty_conversation(ctx):
    """Without a turn before there is no history."""
    assert await rehydrate_conversation(None, ctx) == Conversation()


async def test_rehydration_gives_all_items_in_order_and_the_last_metadata(ctx):
    """Input and output of every turn before, oldest first, and the metadata of the last."""
    await kept(ctx, "resp_1", "one", metadata={"turn": "1"})
    await kept(ctx, "resp_2", "two", "resp_1", metadata={"turn": "2"})
    await kept(ctx, "resp_3", "three", "resp_2", metadata={"turn": "3"})
    conversation = await rehydrate_conversation("resp_3", ctx)
    words = [item.data["content"][0]["text"] for item in conversation.history]
    assert words == ["one?", "one.", "two?", "two.", "three?", "three."]
    assert [item.id for item in conversation.history] == [item.data["id"] for item in conversation.history]
    assert conversation.metadata == {"turn": "3"}
    middle = await rehydrate_conversation("resp_2", ctx)
    assert len(middle.history) == 4


async def test_rehydrating_an_unknown_turn_is_the_callers_mistake(ctx):
    """The error names the parameter, as it does over HTTP: 400, `previous_response_not_found`."""
    with pytest.raises(RequestError, match="resp_none") as caught:
        await rehydrate_conversation("resp_none", ctx)
    assert caught.value.param == "previous_response_id"
    assert caught.value.code == "previous_response_not_found"
    assert caught.value.http_status == 400


async def test_inference_is_awaited_or_iterated(ctx, upstream):
    """The same call gives an `InferenceResult` when awaited and `InferenceEvent`s when iterated."""
    tools = [schema.as_function_tool() for schema in await ctx.tools.tools(RequestContext())]
    request = InferenceRequest(model="fake", input=[user("hi")], tools=tools, stream=True)
    result = await call_inference(Conversation(), request, ctx)
    assert [item["type"] for item in result.output] == ["message", "function_call", "function_call"]
    assert result.output[0]["content"][0]["text"].endswith("Let me see.")
    assert [json.loads(call.arguments) for call in result.tool_calls] == [{"what": "sea"}, {"what": "sky"}]
    assert [call.call_id for call in result.tool_calls] == [i["call_id"] for i in result.output[1:]]
    assert result.usage.total_tokens > 0
    assert result.finish_reason == "tool_calls"

    events = [event async for event in call_inference(Conversation(), request, ctx)]
    assert "".join(e.text for e in events if isinstance(e, TextDelta)).endswith("Let me see.")
    arguments = [
        "".join(e.arguments for e in events if isinstance(e, CallDelta) and e.index == n) for n in (0, 1)
    ]
    assert [json.loads(each) for each in arguments] == [{"what": "sea"}, {"what": "sky"}]
    assert [isinstance(e, InferenceFinished) for e in events] == [False] * (len(events) - 1) + [True]
    assert len(events) > 6, "streamed pieces come one by one"


async def test_both_forms_of_inference_take_one_path(store):
    """A client sees the very same request whichever way it is called, once per call."""

    class Recording:
        def __init__(self):
            self.asked = []

        async def call(self, request):
            self.asked.append(request)
            yield TextDelta("a")
            yield TextDelta("b")
            yield InferenceFinished()

    client = Recording()
    ctx = ExecutionContext(store, client)
    request = InferenceRequest(model="m", input=[user("hi")], params={"seed": 7}, stream=True)
    result = await call_inference(Conversation(), request, ctx)
    async for _ in call_inference(Conversation(), request, ctx):
        pass
    assert result.output[0]["content"][0]["text"] == "ab"
    assert client.asked == [request, request]


async def test_inference_is_asked_with_the_history_first(ctx, upstream):
    """The conversation comes before the request's own input, and unknown parameters pass through."""
    await kept(ctx, "resp_1", "one")
    conversation = await rehydrate_conversation("resp_1", ctx)
    request = InferenceRequest(model="fake", input=[user("now?")], params={"seed": 7, "made_up": True})
    await call_inference(conversation, request, ctx)
    body = upstream.requests[0].body
    assert [m["content"] for m in body["messages"]] == ["one?", "one.", "now?"]
    assert body["seed"] == 7
    assert body["made_up"] is True


async def test_failed_inference_raises(ctx, upstream):
    """Both forms raise `InferenceError`, the root of one branch of the tree."""
    upstream.inject(*[FaultKind.GARBAGE] * 20)
    request = InferenceRequest(model="fake", input=[user("hi")])
    with pytest.raises(InferenceError):
        await call_inference(Conversation(), request, ctx)
    with pytest.raises(InferenceError):
        async for _ in call_inference(Conversation(), request, ctx):
            pass


async def test_tools_run_at_the_same_time_and_answer_in_order(store, client):
    """Results stand in the order of the calls, whichever ended first; none waits for another."""
    barrier = asyncio.Barrier(3)
    ended = []
    turns = [asyncio.Event() for _ in range(4)]
    turns[3].set()

    @tool(effect="pure")
    async def meet(place: int) -> int:
        """Wait for the others, then end in reverse order."""
        await asyncio.wait_for(barrier.wait(), 10)
        await asyncio.wait_for(turns[place + 1].wait(), 10)
        ended.append(place)
        turns[place].set()
        return place

    ctx = ExecutionContext(store, client, FunctionToolExecutor([meet]))
    calls = [ToolCall(f"fc_{n}", f"call_{n}", "meet", json.dumps({"place": n})) for n in range(3)]
    results = await dispatch_tools(calls, ctx)
    assert [(r.call_id, r.output) for r in results] == [("call_0", "0"), ("call_1", "1"), ("call_2", "2")]
    assert ended == [2, 1, 0]


async def test_a_tools_failure_is_a_result(store, client):
    """What is wrong is told in words for the model, with the JSON path of a wrong argument; siblings go on."""

    @tool(effect="pure")
    def fails() -> None:
        """Fail."""
        raise ValueError("no luck")

    ctx = ExecutionContext(store, client, FunctionToolExecutor([look, fails]))
    results = await dispatch_tools(
        [
            ToolCall("1", "c1", "fails", "{}"),
            ToolCall("2", "c2", "look", '{"what": 7}'),
            ToolCall("3", "c3", "look", "not json"),
            ToolCall("4", "c4", "nothing", "{}"),
            ToolCall("5", "c5", "look", '{"what": "sea"}'),
        ],
        ctx,
    )
    assert [r.failed for r in results] == [True, True, True, True, False]
    assert results[0].output.startswith("Tool execution error: ")
    assert "no luck" in results[0].output
    assert results[1].output.startswith("Invalid arguments: $.what")
    assert results[2].output.startswith("Invalid arguments: ")
    assert results[3].output == "Tool not found: nothing"
    assert results[4].output == "the sea is blue"


async def test_dispatched_tools_see_the_request_context(store, client):
    """What the embedding program put into the context is there, and each call has a key of its own."""
    seen = []

    class Tenant(str):
        __slots__ = ()

    @tool(effect="pure")
    def who(ctx: ToolContext) -> str:
        """Say who asks."""
        seen.append(ctx.idempotency_key)
        return str(ctx.request.extension(Tenant))

    context = RequestContext("fake").with_extension(Tenant("acme"))
    ctx = ExecutionContext(store, client, FunctionToolExecutor([who]), request_context=context)
    results = await dispatch_tools(
        [ToolCall("fc_1", "c1", "who", ""), ToolCall("fc_2", "c2", "who", "{}")], ctx
    )
    assert [r.output for r in results] == ["acme", "acme"]
    assert len(set(seen)) == 2


async def test_assembling_keeps_ids_and_is_right_on_the_wire():
    """The response has the wire's fields, the items as they came, and nothing of an event stream."""
    items = [said("one ", "msg_1"), said("two", "msg_2")]
    response = assemble_response("run_7", items, "fake", {"metadata": {"k": "v"}, "temperature": 0.5})
    assert isinstance(response, Response)
    assert response.id == "resp_7"
    assert response.output == items
    assert response.output_text == "one two"
    assert response.interruptions == []
    assert response.metadata == {"k": "v"}
    assert response.temperature == 0.5
    judge_response(response.to_dict())
    assert Response.from_dict(response.to_dict()).to_dict() == response.to_dict()
    with pytest.raises(AttributeError):
        response.status = "failed"


async def test_assembling_takes_plain_metadata_pairs():
    """Pairs that are no field of the wire are the response's own metadata."""
    assert assemble_response("resp_1", [], "fake", {"team": "blue"}).metadata == {"team": "blue"}
    assert assemble_response("resp_1", [], "fake").metadata == {}


async def test_persisting_makes_a_response_that_can_be_read(ctx, store):
    """What was persisted is what `get_response` and `get_items` give, input included."""
    response = await kept(ctx, "resp_1", "one")
    again = await store.get_response("resp_1")
    assert again.to_dict() == response.to_dict()
    assert again.input_items == response.input_items
    items = await store.get_items(["msg_a_one", "msg_none", "msg_u_one"])
    assert {item.id for item in items} == {"msg_a_one", "msg_u_one"}


async def test_persisting_does_nothing_when_store_is_false(ctx, store):
    """`store: false` leaves no trace."""
    await kept(ctx, "resp_1", "one", store=False)
    assert await store.get_response("resp_1") is None
    assert await store.get_items(["msg_a_one", "msg_u_one"]) == []


async def test_persisting_twice_is_refused(ctx):
    """A response is written once; a second one of its id is a `StoreError` and changes nothing."""
    await kept(ctx, "resp_1", "one")
    with pytest.raises(StoreError):
        await kept(ctx, "resp_1", "other")
    assert (await ctx.store.get_response("resp_1")).output_text == "one."


async def test_execute_is_a_whole_turn(ctx, upstream, store):
    """Rehydrate, loop, assemble, persist: tools ran, usage is summed, the response is stored as given."""
    response = await execute({"model": "fake", "input": "what do you see?", "metadata": {"a": "b"}}, ctx)
    judge_response(response.to_dict())
    assert response.status == "completed"
    assert [item["type"] for item in response.output] == ["message", "mcp_call", "mcp_call", "message"]
    assert [i["output"] for i in response.output[1:3]] == ["the sea is blue", "the sky is blue"]
    assert response.output_text.endswith("Blue, both.")
    assert response.usage.input_tokens == sum(len(r.raw) // 4 for r in upstream.requests)
    assert (await store.get_response(response.id)).to_dict() == response.to_dict()


async def test_execute_goes_on_from_the_turn_before(ctx, upstream):
    """The second turn's messages begin, byte for byte, with those of the first; its own come after."""
    first = await execute({"model": "fake", "input": "one"}, ctx)
    asked = {"model": "fake", "input": "two", "previous_response_id": first.id}
    second = await execute(asked, ctx)
    requests = upstream.requests
    assert len(requests) == 4
    for earlier, later in itertools.pairwise(requests):
        assert later.extends(earlier)
    assert second.previous_response_id == first.id
    conversation = await rehydrate_conversation(second.id, ctx)
    assert [i.data["type"] for i in conversation.history].count("mcp_call") == 4


async def test_execute_writes_nothing_when_store_is_false(ctx, store):
    """A turn that is not stored cannot be continued."""
    response = await execute({"model": "fake", "input": "one", "store": False}, ctx)
    assert response.status == "completed"
    assert await store.get_response(response.id) is None
    with pytest.raises(RequestError):
        await execute({"model": "fake", "input": "two", "previous_response_id": response.id}, ctx)


async def test_execute_gives_the_clients_calls_to_the_client(store):
    """A function that the request declares is the client's, even where a tool of ours has its name."""
    declared = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    script = turns_script([Turn(calls=(ScriptedCall("look", {"what": "sea"}),)), Turn(text="Calm.")])
    async with (
        FakeUpstream(script) as upstream,
        ChatCompletionsClient(UpstreamTarget(upstream.url)) as client,
    ):
        ctx = ExecutionContext(store, client, FunctionToolExecutor([look]))
        response = await execute({"model": "fake", "input": "hi", "tools": [declared]}, ctx)
        (call,) = response.output
        assert call["type"] == "function_call"
        judge_response(response.to_dict())
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "calm"}
        asked = {"model": "fake", "input": [output], "previous_response_id": response.id}
        await execute(asked, ctx)
        assert upstream.requests[1].body["messages"][-1]["content"] == "calm"
        with pytest.raises(RequestError, match="No tool output found"):
            await execute({**asked, "input": "no output"}, ctx)


async def test_execute_ends_incomplete_at_a_budget(ctx):
    """A budget of the request is kept: calls over it were not run, and the next turn is valid."""
    response = await execute({"model": "fake", "input": "hi", "max_tool_calls": 1}, ctx)
    assert response.status == "incomplete"
    assert response.incomplete_details == {"reason": "max_tool_calls"}
    judge_response(response.to_dict())
    ran, not_run = (item for item in response.output if item["type"] == "mcp_call")
    assert ran["status"] == "completed"
    assert not_run["output"] == "not run: max_tool_calls"
    await execute({"model": "fake", "input": "on", "previous_response_id": response.id}, ctx)


async def test_execute_raises_at_the_iteration_cap(store, client):
    """As `run_response_loop` does."""
    ctx = ExecutionContext(store, client, FunctionToolExecutor([look]), LoopConfig(max_response_iterations=1))
    with pytest.raises(LoopError.MaxIterationsExceeded):
        await execute({"model": "fake", "input": "hi"}, ctx)


async def test_execute_checks_the_request(ctx, upstream):
    """A malformed request is refused with its JSON path before the model is asked."""
    with pytest.raises(RequestError) as caught:
        await execute({"model": "fake", "input": [{"role": "nobody", "content": "x"}]}, ctx)
    assert caught.value.param == "input[0].role"
    assert upstream.requests == []


async def test_a_context_is_open_for_additions(store, client):
    """`ExecutionContext` may be subclassed: the functions work with what they know of it."""

    class Audited(ExecutionContext):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.audit = []

    ctx = Audited(store, client, FunctionToolExecutor([look]))
    response = await execute({"model": "fake", "input": "hi"}, ctx)
    ctx.audit.append(response.id)
    assert response.status == "completed"


def test_step_functions_say_that_they_are_not_durable():
    """Called without a claim nobody resumes them, and their docstrings say so."""
    for name in ("rehydrate_conversation", "call_inference", "dispatch_tools", "execute"):
        home = getattr(antiphon, name)
        told = f"{home.__doc__} {__import__(home.__module__, fromlist=['x']).__doc__}"
        assert "not\ndurable" in told.lower() or "not durable" in told.lower().replace("*", ""), name


async def test_steps_are_kept_one_by_one(store):
    """`ResponseStepStore` through the public names: places, moves, retries, scopes, and what is refused."""

    def at(ordinal, sequence, **more):
        return CreateStepInput(
            request_id="run_1",
            ordinal=ordinal,
            step_sequence=sequence,
            request_payload={"n": ordinal},
            **{"step_kind": StepKind.MODEL_CALL, **more},
        )

    first = await store.create_step(at(0, 0))
    with pytest.raises(DuplicateStep):
        await store.create_step(at(0, 9))
    tool_step = await store.create_step(
        at(1, 1, step_kind=StepKind.TOOL_CALL, prev_step_id=first, id="step_of_mine")
    )
    assert tool_step == "step_of_mine"
    inner = await store.create_step(at(0, 2, parent_step_id=tool_step))

    step = await store.get_step(first)
    assert (step.state, step.started_at, step.response_payload, step.error) == (
        StepState.PENDING,
        None,
        None,
        None,
    )
    await store.mark_step_processing(first)
    started = (await store.get_step(first)).started_at
    await store.mark_step_processing(first)
    assert (await store.get_step(first)).started_at == started is not None
    await store.requeue_step_for_retry(first)
    step = await store.get_step(first)
    assert (step.state, step.retry_attempt, step.started_at) == (StepState.PENDING, 1, None)
    await store.mark_step_processing(first)
    await store.complete_step(first, {"said": "x"})
    await store.mark_step_processing(first)
    step = await store.get_step(first)
    assert (step.state, step.response_payload, step.error) == (StepState.COMPLETED, {"said": "x"}, None)
    for refused in (
        store.complete_step(first, {"y": 1}),
        store.fail_step(first, {}),
        store.cancel_step(first),
    ):
        with pytest.raises(StepAlreadyTerminal):
            await refused
    assert (await store.get_step(first)).response_payload == {"said": "x"}

    await store.fail_step(inner, {"code": "x"})
    step = await store.get_step(inner)
    assert (step.state, step.response_payload, step.error) == (StepState.FAILED, None, {"code": "x"})
    await store.cancel_step(tool_step)
    assert (await store.get_step(tool_step)).canceled_at is not None

    assert [s.id for s in await store.list_chain("run_1")] == [first, tool_step, inner]
    assert [s.id for s in await store.list_scope("run_1", None)] == [first, tool_step]
    assert [s.id for s in await store.list_scope("run_1", tool_step)] == [inner]
    assert await store.get_step("nothing") is None
    assert await store.list_chain("run_2") == []


async def test_once_calls_cannot_be_requeued(store):
    """A `tool_call` whose effect is `once` refuses to be tried again and stays as it was."""
    step = await store.create_step(
        CreateStepInput(
            request_id="run_1",
            ordinal=0,
            step_sequence=0,
            step_kind=StepKind.TOOL_CALL,
            request_payload={"name": "pay", "effect": "once"},
        )
    )
    await store.mark_step_processing(step)
    with pytest.raises(StoreError):
        await store.requeue_step_for_retry(step)
    assert (await store.get_step(step)).state is StepState.PROCESSING


class TestGuardrailLoop:
    """`examples/guardrail_loop.py`: a loop written from the step functions alone."""

    guardrail_loop = example("guardrail_loop")

    @pytest.fixture
    async def bank(self, store):
        """The example's tools, and a model that uses both of them in one turn."""
        calls = (
            ScriptedCall("transfer", {"amount": 50, "to": "Eve"}),
            ScriptedCall("balance", {"account": "savings"}),
        )
        async with (
            FakeUpstream(turns_script([Turn(calls=calls), Turn(text="Done.")])) as upstream,
            ChatCompletionsClient(UpstreamTarget(upstream.url)) as client,
        ):
            module = self.guardrail_loop
            tools = FunctionToolExecutor([module.balance, module.transfer])
            yield ExecutionContext(store, client, tools), upstream

    async def test_only_what_the_guardrail_lets_through_is_run(self, bank):
        """A refused call never reaches its tool; the model hears why, paired by `call_id`."""
        ctx, upstream = bank
        response = await self.guardrail_loop.guarded("hi", "fake", ctx, self.guardrail_loop.no_transfers)
        judge_response(response.to_dict())
        heard = {
            m["tool_call_id"]: m["content"]
            for m in upstream.requests[1].body["messages"]
            if m["role"] == "tool"
        }
        made = [c["id"] for c in upstream.requests[1].body["messages"][1]["tool_calls"]]
        assert [heard[call_id] for call_id in made] == [
            "Refused: Transfers need a human.",
            "savings holds 120 EUR",
        ]

    async def test_without_objections_all_calls_run(self, bank):
        """A guardrail that says nothing changes nothing."""
        ctx, upstream = bank
        await self.guardrail_loop.guarded("hi", "fake", ctx, lambda _call: None)
        assert "sent 50 EUR to Eve" in upstream.requests[1].raw.decode()

    async def test_its_turns_are_a_conversation(self, bank):
        """The next turn begins with everything before it, byte for byte, and the store has both."""
        ctx, upstream = bank
        guarded, guardrail = self.guardrail_loop.guarded, self.guardrail_loop.no_transfers
        first = await guarded("hi", "fake", ctx, guardrail)
        second = await guarded("on", "fake", ctx, guardrail, first.id)
        for earlier, later in itertools.pairwise(upstream.requests):
            assert later.extends(earlier)
        assert (await ctx.store.get_response(second.id)).previous_response_id == first.id
