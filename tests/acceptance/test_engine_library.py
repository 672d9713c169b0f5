"""The engine as a library: `async with Engine(...)`, without any HTTP of its own, on both stores."""

import asyncio
import contextlib
import itertools
import json
import socket
import sqlite3

import aiohttp
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from antiphon import (
    ConfigurationError,
    Engine,
    Error,
    FunctionToolExecutor,
    Limits,
    RequestContext,
    RequestError,
    ServerOptions,
    StepKind,
    StreamCutError,
    ToolContext,
    ToolKind,
    ToolSchema,
    create_app,
    tool,
)
from antiphon.testing import FakeUpstream, FaultKind, ScriptedCall, Turn, answer_script, fold, turns_script
from serving import Serving, judge, judge_response, read_frames, types

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'work.db'}"


@contextlib.asynccontextmanager
async def library(script=None, **engine):
    """An engine in front of a fake model server, and that server."""
    async with (
        FakeUpstream(script) as upstream,
        Engine(**{"store": "memory:", "upstream": upstream.url + "/v1", **engine}) as made,
    ):
        yield made, upstream


async def created(engine, **parameters):
    """A response, judged."""
    response = await engine.responses.create(**{"model": "fake", **parameters})
    judge_response(response.to_dict())
    return response


async def told(stream, **options):
    """The events of a stream as JSON objects, judged."""
    return judge([event.to_dict() async for event in await stream], **options)


async def streamed(engine, **parameters):
    return await told(engine.responses.create(**{"model": "fake", **parameters}, stream=True))


async def followed(engine, response_id):
    """All events that a reader sees who comes back when it is cut, judged as that."""
    events = []
    while True:
        cursor = events[-1]["sequence_number"] if events else -1
        stream = await engine.responses.retrieve(response_id, stream=True, starting_after=cursor)
        try:
            async for event in stream:
                events.append(event.to_dict())  # noqa: PERF401 - what was seen before a cut stays seen
        except StreamCutError:
            continue
        return judge(events, resumed=True)


def kinds(response):
    output = response["output"] if isinstance(response, dict) else response.output
    return [item["type"] for item in output]


def heard(request):
    """What the model was told by tools, in order."""
    return [m["content"] for m in request.body["messages"] if m["role"] == "tool"]


def check_pairs(request):
    """Each assistant message's calls are answered directly after it, each once: what real servers demand."""
    messages = request.body["messages"]
    for place, message in enumerate(messages):
        ids = [call["id"] for call in message.get("tool_calls") or ()]
        after = [m.get("tool_call_id") for m in messages[place + 1 : place + 1 + len(ids)]]
        assert sorted(after) == sorted(ids), messages
        assert len(set(ids)) == len(ids)


def call(name, **arguments):
    return ScriptedCall(name, arguments)


@tool(effect="pure")
async def look(what: str) -> str:
    """Look at something."""
    return f"the {what} is blue"


@tool(effect="pure")
async def broken() -> str:
    """Fail."""
    raise RuntimeError("out of order")


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


ASK = {"type": "function", "name": "ask_user", "parameters": {"type": "object", "properties": {}}}


class TestLife:
    """Create, retrieve, follow, cancel, delete."""

    async def test_a_plain_response(self, store):
        """`create` gives the response at its end, `retrieve` the same."""
        async with library(answer_script("Hello.", varied=False), store=store) as (engine, _):
            response = await created(engine, input="hi", metadata={"k": "v"})
            assert response.status == "completed"
            assert response.output_text == "Hello."
            assert response.usage.total_tokens > 0
            assert (await engine.responses.retrieve(response.id)).to_dict() == response.to_dict()

    async def test_a_streamed_response(self, store):
        """`create(stream=True)` gives events; their fold, the last event and `retrieve` agree."""
        async with library(answer_script("Hello there."), store=store) as (engine, _):
            events = await streamed(engine, input="hi")
            last = events[-1]["response"]
            assert fold(events)["output"] == last["output"]
            assert (await engine.responses.retrieve(last["id"])).to_dict() == last

    async def test_a_background_response(self, store):
        """`create(background=True)` comes back at once; the rest goes on unwatched."""
        async with library(answer_script("Done."), store=store) as (engine, upstream):
            upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
            begun = await created(engine, input="hi", background=True)
            assert begun.status in {"queued", "in_progress"}
            await upstream.until_hanging()
            upstream.release()
            events = await told(engine.responses.retrieve(begun.id, stream=True))
            assert events[-1]["response"]["status"] == "completed"
            assert (await engine.responses.retrieve(begun.id)).output_text.endswith("Done.")

    @pytest.mark.parametrize("how", ["stream", "background", "plain"])
    async def test_a_replay_from_every_cursor_is_the_suffix(self, store, how):
        """From any cursor the same bytes follow that stood after it in the whole stream."""
        script = turns_script(
            [
                Turn(text="One moment.", reasoning="Hm.", calls=(call("look", what="sea"), call("broken"))),
                Turn(text="So."),
            ]
        )
        async with library(script, store=store, tools=[look, broken]) as (engine, _):
            if how == "stream":
                whole = [
                    e async for e in await engine.responses.create(model="fake", input="hi", stream=True)
                ]
                response_id = whole[0].to_dict()["response"]["id"]
            else:
                response_id = (await created(engine, input="hi", background=how == "background")).id
                whole = [e async for e in await engine.responses.retrieve(response_id, stream=True)]
            options = {"deltas_optional": how == "plain"}
            judge([event.to_dict() for event in whole], **options)
            for cursor in range(-1, len(whole)):
                rest = [
                    event
                    async for event in await engine.responses.retrieve(
                        response_id, stream=True, starting_after=cursor
                    )
                ] if cursor < len(whole) - 1 else []  # fmt: skip
                assert rest == whole[cursor + 1 :]
                if rest:
                    after = {"starting_after": cursor} if cursor >= 0 else {}
                    judge([event.to_dict() for event in rest], **options, **after)

    async def test_readers_at_every_cursor_of_a_running_response(self, store):
        """Who joins in the middle, wherever, reads on without a gap to the same end."""
        async with library(answer_script("one two three four five six"), store=store) as (engine, upstream):
            upstream.inject(FaultKind.HANG_MID_STREAM)
            begun = await created(engine, input="hi", background=True)
            await upstream.until_hanging()
            readers = [
                asyncio.create_task(
                    _all(engine.responses.retrieve(begun.id, stream=True, starting_after=cursor))
                )
                for cursor in range(-1, 6)
            ]
            await asyncio.sleep(0)
            upstream.release()
            whole, *others = await asyncio.gather(*readers)
            judge([event.to_dict() for event in whole])
            for cursor, rest in enumerate(others):
                assert rest == whole[cursor + 1 :]

    async def test_cancelling(self, store):
        """A running response is cancelled, its stream ends so; cancelling again changes nothing."""
        async with library(answer_script("one two three four"), store=store) as (engine, upstream):
            upstream.inject(FaultKind.HANG_MID_STREAM)
            begun = await created(engine, input="hi", background=True)
            reader = asyncio.create_task(told(engine.responses.retrieve(begun.id, stream=True)))
            await upstream.until_hanging()
            cancelled = await engine.responses.cancel(begun.id)
            judge_response(cancelled.to_dict())
            assert cancelled.status == "cancelled"
            events = await asyncio.wait_for(reader, 10)
            assert events[-1]["type"] == "response.failed"
            assert events[-1]["response"]["status"] == "cancelled"
            assert (await engine.responses.cancel(begun.id)).to_dict() == cancelled.to_dict()

    async def test_cancelling_what_has_ended_changes_nothing(self, store):
        """The first terminal state wins."""
        async with library(store=store) as (engine, _):
            response = await created(engine, input="hi")
            assert (await engine.responses.cancel(response.id)).to_dict() == response.to_dict()

    async def test_deleting(self, store):
        """A deleted response is unknown everywhere; what descends from it keeps its history."""
        async with library(answer_script("Noted.", varied=False), store=store) as (engine, upstream):
            first = await created(engine, input="one")
            second = await created(engine, input="two", previous_response_id=first.id)
            await engine.responses.delete(first.id)
            for unknown in (
                engine.responses.retrieve(first.id),
                engine.responses.delete(first.id),
                engine.responses.cancel(first.id),
                engine.responses.input_items.list(first.id),
            ):
                with pytest.raises(RequestError) as caught:
                    await unknown
                assert caught.value.http_status == 404
            with pytest.raises(RequestError) as caught:
                await created(engine, input="x", previous_response_id=first.id)
            assert caught.value.http_status == 400
            await created(engine, input="three", previous_response_id=second.id)
            assert [m["content"] for m in upstream.requests[-1].body["messages"]] == [
                "one", "Noted.", "two", "Noted.", "three",
            ]  # fmt: skip

    async def test_deleting_what_runs_cancels_it(self, store):
        """Its stream is cut or ends as cancelled, and nobody knows it afterwards."""
        async with library(store=store) as (engine, upstream):
            upstream.inject(FaultKind.HANG_MID_STREAM)
            begun = await created(engine, input="hi", background=True)
            await upstream.until_hanging()
            await engine.responses.delete(begun.id)
            with pytest.raises(RequestError):
                await engine.responses.retrieve(begun.id)

    async def test_input_items(self, store):
        """The input of one turn, newest first unless asked otherwise, page by page."""
        async with library(store=store) as (engine, _):
            first = await created(engine, input="not this turn")
            texts = [f"item {n}" for n in range(5)]
            given = [{"role": "user", "content": text} for text in texts]
            response = await created(engine, input=given, previous_response_id=first.id)
            items = await engine.responses.input_items.list(response.id, order="asc")
            assert [item["content"][0]["text"] for item in items] == texts
            assert await engine.responses.input_items.list(response.id) == items[::-1]
            page = await engine.responses.input_items.list(
                response.id, order="asc", limit=2, after=items[1]["id"]
            )
            assert page == items[2:4]

    async def test_a_refused_request_names_the_place(self, store):
        """Nothing is asked and nothing is kept; the error has the JSON path."""
        async with library(store=store) as (engine, upstream):
            with pytest.raises(RequestError) as caught:
                await engine.responses.create(
                    model="fake", input=[{"type": "message", "role": "x", "content": "y"}]
                )
            assert caught.value.param == "input[0].role"
            assert upstream.requests == []
            assert (await engine.list_responses()).responses == ()

    async def test_a_failed_response_says_why(self, store):
        """An upstream that gives no answer fails the response; `create` gives it with its error."""
        async with library(store=store) as (engine, upstream):
            upstream.inject(*[FaultKind.GARBAGE] * 20)
            response = await created(engine, input="hi")
            assert response.status == "failed"
            assert response.error["code"] == "upstream_broken"
            upstream.inject(*[FaultKind.GARBAGE] * 20)
            events = await streamed(engine, input="hi")
            assert types(events)[-2:] == ["error", "response.failed"]

    async def test_many_at_once(self, store):
        """Fifty responses side by side, each with its own tools and events."""
        script = turns_script([Turn(calls=(call("look", what="sea"),)), Turn(text="So.")])
        async with library(script, store=store, tools=[look]) as (engine, _):
            all_events = await asyncio.gather(*(streamed(engine, input=f"hi {n}") for n in range(50)))
            ids = {events[-1]["response"]["id"] for events in all_events}
            assert len(ids) == 50
            assert {tuple(kinds(e[-1]["response"])) for e in all_events} == {("mcp_call", "message")}

    async def test_a_stopped_engine_refuses(self):
        """Before and after `async with` there is an error that says so."""
        async with library() as (engine, _):
            pass
        with pytest.raises(Error, match=r"async with|stopping"):
            await engine.responses.create(model="fake", input="hi")
        never = Engine(store="memory:", upstream="http://127.0.0.1:1/v1")
        with pytest.raises(Error, match="async with"):
            await never.responses.create(model="fake", input="hi")


async def _all(stream):
    return [event async for event in await stream]


class TestTools:
    """Tools that the engine runs, and those of the client."""

    async def test_parallel_tools_run_at_the_same_time(self, store):
        """Each waits for all the others; results are paired by call, and told as `mcp_call` items."""
        barrier = asyncio.Barrier(4)

        @tool(effect="pure")
        async def meet(place: int) -> int:
            """Meet the others."""
            await asyncio.wait_for(barrier.wait(), 10)
            return place

        turn = Turn(calls=tuple(call("meet", place=n) for n in range(4)), interleaved=True)
        async with library(turns_script([turn, Turn(text="So.")]), store=store, tools=[meet]) as (
            engine,
            upstream,
        ):
            events = await streamed(engine, input="hi")
            output = events[-1]["response"]["output"]
            assert [(json.loads(i["arguments"])["place"], i["output"]) for i in output[:4]] == [
                (n, str(n)) for n in range(4)
            ]
            assert heard(upstream.requests[1]) == ["0", "1", "2", "3"]
            check_pairs(upstream.requests[1])

    async def test_client_and_server_tools_in_one_turn(self, store):
        """Ours run first, then the response completes with the client's calls open, all in order."""
        calls = (call("look", what="sea"), call("ask_user"), call("look", what="sky"))
        script = turns_script([Turn(text="Well.", calls=calls), Turn(text="Good.")])
        async with library(script, store=store, tools=[look]) as (engine, upstream):
            events = await streamed(engine, input="hi", tools=[ASK])
            response = events[-1]["response"]
            assert response["status"] == "completed"
            assert kinds(response) == ["message", "mcp_call", "function_call", "mcp_call"]
            assert [i["output"] for i in response["output"] if i["type"] == "mcp_call"] == [
                "the sea is blue",
                "the sky is blue",
            ]
            assert len(upstream.requests) == 1
            asked = response["output"][2]
            answer = {"type": "function_call_output", "call_id": asked["call_id"], "output": "yes"}
            with pytest.raises(RequestError, match="No tool output found"):
                await created(engine, input="no output", previous_response_id=response["id"], tools=[ASK])
            second = await created(engine, input=[answer], previous_response_id=response["id"], tools=[ASK])
            assert second.output_text.endswith("Good.")
            check_pairs(upstream.requests[1])
            assert sorted(heard(upstream.requests[1])) == ["the sea is blue", "the sky is blue", "yes"]

    async def test_a_clients_call_is_done_only_once_it_is_stored(self, tmp_path):
        """When the client sees its call as done, the answer that made it is in the file."""
        file = tmp_path / "work.db"
        script = answer_script("", calls=(call("ask_user"),))
        async with library(script, store=f"sqlite:///{file}") as (engine, _):
            seen = False
            async for event in await engine.responses.create(
                model="fake", input="hi", tools=[ASK], stream=True
            ):
                item = event.to_dict().get("item", {})
                if event.type == "response.output_item.done" and item["type"] == "function_call":
                    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
                        rows = db.execute("SELECT state, response_payload FROM steps").fetchall()
                    assert [row[0] for row in rows] == ["completed"]
                    assert item["call_id"] in bytes(rows[0][1]).decode()
                    seen = True
            assert seen

    async def test_the_model_hears_of_a_tools_failure(self, store):
        """The response goes on; the item has an error object, the sibling its result."""
        calls = (call("broken"), call("look", what="sea"), call("made_up"))
        script = turns_script([Turn(calls=calls), Turn(text="I see.")])
        async with library(script, store=store, tools=[look, broken]) as (engine, upstream):
            response = await created(engine, input="hi")
        assert response.status == "completed"
        failed, fine, unknown, _ = response.output
        assert failed["error"]["type"] == unknown["error"]["type"] == "mcp_tool_execution_error"
        assert (failed["output"], failed["status"]) == (None, "failed")
        assert fine["output"] == "the sea is blue"
        told_to_model = heard(upstream.requests[1])
        assert "out of order" in told_to_model[0]
        assert "Tool not found: made_up" in told_to_model[2]

    async def test_invalid_arguments_go_back_with_their_path(self, store):
        """The tool is not called; the model reads the JSON path and may try again, which is an iteration."""
        called = []

        @tool(effect="pure")
        async def order(items: list[dict[str, int]]) -> str:
            """Order."""
            called.append(items)
            return "ordered"

        script = turns_script(
            [
                Turn(calls=(call("order", items=[{"qty": 1}, {"qty": "two"}]),)),
                Turn(calls=(ScriptedCall("order", "{not json"),)),
                Turn(calls=(call("order", items=[{"qty": 2}]),)),
                Turn(text="Ordered."),
            ]
        )
        async with library(script, store=store, tools=[order]) as (engine, upstream):
            response = await created(engine, input="hi")
        assert called == [[{"qty": 2}]]
        assert response.output_text.endswith("Ordered.")
        results = heard(upstream.requests[3])
        assert "Invalid arguments: $.items[1].qty" in results[0]
        assert "Invalid arguments: $: not valid JSON" in results[1]
        assert results[2] == "ordered"
        assert len(upstream.requests) == 4

    async def test_tools_see_the_request_context(self, store):
        """Extensions given to `create` reach functions and executors, and are written nowhere."""

        class Tenant(str):
            __slots__ = ()

        @tool(effect="pure")
        async def who(ctx: ToolContext) -> str:
            """Say who asks."""
            return f"{ctx.request.extension(Tenant)} {ctx.request.model} {ctx.idempotency_key[:5]}"

        offered_to = []

        class Executor:
            async def tools(self, ctx):
                offered_to.append(ctx.extension(Tenant))
                return [ToolSchema(name="where", effect="pure")]

            async def execute(self, tool_name, tool_call_id, arguments, ctx):
                return f"at {ctx.extension(Tenant)}"

        script = turns_script([Turn(calls=(call("who"), call("where"))), Turn(text="So.")])
        async with library(script, store=store, tools=[who, Executor()]) as (engine, upstream):
            context = RequestContext("fake").with_extension(Tenant("acme-secret"))
            await created(engine, input="hi", context=context)
            assert heard(upstream.requests[1]) == ["acme-secret fake step_", "at acme-secret"]
            assert offered_to == ["acme-secret"], "asked once per request"
            assert b"acme" not in upstream.requests[0].raw
            response_id = (await engine.list_responses()).responses[0].response_id
            stored = await engine.find(response_id)
            assert b"acme-secret" not in (await engine.store.get_run(stored.run_id)).request

    async def test_the_context_is_made_anew_after_a_takeover(self, tmp_path):
        """The next engine on the same file asks `context_factory`, and the tool sees what it gives."""
        url = f"sqlite:///{tmp_path / 'work.db'}"
        seen = []

        @tool(effect="pure")
        async def who(ctx: ToolContext) -> str:
            """Say who asks."""
            seen.append(ctx.request.extension(str))
            return "fine"

        async def factory(run):
            return RequestContext("fake").with_extension(f"again {run.project}")

        async with FakeUpstream(turns_script([Turn(calls=(call("who"),)), Turn(text="So.")])) as upstream:
            options = {
                "store": url,
                "upstream": upstream.url + "/v1",
                "tools": [who],
                "context_factory": factory,
            }
            upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
            async with Engine(**options) as engine:
                context = RequestContext("fake").with_extension("first")
                begun = await engine.responses.create(
                    model="fake", input="hi", background=True, context=context
                )
                await upstream.until_hanging()
            upstream.release()
            async with Engine(**options) as engine:
                events = await told(engine.responses.retrieve(begun.id, stream=True))
        assert events[-1]["response"]["status"] == "completed"
        assert seen == ["again default"]

    async def test_a_tool_runs_once_per_call_with_a_key_of_its_own(self, store):
        """Equal calls are different calls: each has its step and its idempotency key."""
        keys = []

        @tool
        async def charge(ctx: ToolContext, amount: int) -> str:
            """Charge."""
            keys.append(ctx.idempotency_key)
            return f"charged {amount}"

        turns = [Turn(calls=(call("charge", amount=1), call("charge", amount=1))), Turn(text="So.")]
        async with library(turns_script(turns), store=store, tools=[charge]) as (engine, _):
            response = await created(engine, input="hi")
            steps = await engine.steps(response.id)
        assert sorted(keys) == sorted(s.id for s in steps if s.step_kind is StepKind.TOOL_CALL)
        assert len(set(keys)) == 2


class TestBudgets:
    """Limits end a response `incomplete`, with a reason, keeping all it has; the next turn is valid."""

    async def test_max_tool_calls(self, store):
        """Calls over the budget are not run and say so."""
        ran = []

        @tool(effect="pure")
        async def count(n: int) -> int:
            """Count."""
            ran.append(n)
            return n

        turns = [Turn(calls=tuple(call("count", n=n) for n in range(4))), Turn(text="Next turn.")]

        async with library(turns_script(turns), store=store, tools=[count]) as (engine, upstream):
            events = await streamed(engine, input="hi", max_tool_calls=2)
            response = events[-1]["response"]
            assert events[-1]["type"] == "response.incomplete"
            assert response["incomplete_details"] == {"reason": "max_tool_calls"}
            assert sorted(ran) == [0, 1]
            assert [i["output"] for i in response["output"]] == [
                "0", "1", "not run: max_tool_calls", "not run: max_tool_calls",
            ]  # fmt: skip
            assert len(upstream.requests) == 1
            await _next_turn_is_valid(engine, upstream, response["id"], answers=4)

    async def test_max_tool_calls_counts_over_all_rounds(self, store):
        """The budget is the run's, not a round's."""
        script = lambda request: Turn(calls=(call("look", what="sea"), call("look", what="sky")))  # noqa: E731
        async with library(script, store=store, tools=[look]) as (engine, upstream):
            response = await created(engine, input="hi", max_tool_calls=3)
            assert response.status == "incomplete"
            outputs = [item["output"] for item in response.output]
            assert [o.startswith("not run") for o in outputs] == [False, False, False, True]
            assert len(upstream.requests) == 2

    async def test_max_output_tokens_in_an_answer(self, store):
        """A cut answer is the last item, `incomplete` as the response is."""
        script = turns_script([Turn(text="one two", finish_reason="length"), Turn(text="Next turn.")])
        async with library(script, store=store) as (engine, upstream):
            events = await streamed(engine, input="hi", max_output_tokens=16)
            response = events[-1]["response"]
            assert events[-1]["type"] == "response.incomplete"
            assert response["incomplete_details"] == {"reason": "max_output_tokens"}
            assert response["output"][-1]["status"] == "incomplete"
            sent = upstream.requests[0].body
            assert sent.get("max_completion_tokens", sent.get("max_tokens")) == 16
            await _next_turn_is_valid(engine, upstream, response["id"], answers=0)

    async def test_a_call_cut_off_is_not_run(self, store):
        """Arguments that were cut off in the middle are never handed to a tool."""
        ran = []

        @tool
        async def note(text: str = "") -> str:
            """Note."""
            ran.append(text)
            return "noted"

        cut = Turn(calls=(ScriptedCall("note", '{"text": "hal'),), finish_reason="length")
        async with library(turns_script([cut, Turn(text="Next turn.")]), store=store, tools=[note]) as (
            engine,
            upstream,
        ):
            response = await created(engine, input="hi", max_output_tokens=16)
            assert response.incomplete_details == {"reason": "max_output_tokens"}
            assert ran == []
            assert response.output[-1]["output"] == "not run: max_output_tokens"
            await _next_turn_is_valid(engine, upstream, response.id, answers=1)

    async def test_max_output_tokens_over_all_rounds(self, store):
        """What the rounds have written together counts; each is asked for no more than what is left."""
        script = lambda request: Turn(text="a b c d e f", calls=(call("look", what="sea"),))  # noqa: E731
        async with library(script, store=store, tools=[look]) as (engine, upstream):
            response = await created(engine, input="hi", max_output_tokens=40)
            assert response.incomplete_details == {"reason": "max_output_tokens"}
            assert response.usage.output_tokens >= 40
            asked = [r.body.get("max_completion_tokens", r.body.get("max_tokens")) for r in upstream.requests]
            assert asked[0] == 40
            assert asked == sorted(asked, reverse=True)
            assert len(set(asked)) == len(asked) > 1
            await _next_turn_is_valid(engine, upstream, response.id, answers=len(asked))

    async def test_max_iterations(self, store):
        """The engine turns the loop's cap into an `incomplete` response."""
        script = lambda request: Turn(calls=(call("look", what="sea"),))  # noqa: E731
        async with library(script, store=store, tools=[look], limits=Limits(max_iterations=3)) as (
            engine,
            upstream,
        ):
            events = await streamed(engine, input="hi")
            response = events[-1]["response"]
            assert events[-1]["type"] == "response.incomplete"
            assert response["incomplete_details"] == {"reason": "max_iterations"}
            assert [i["output"] for i in response["output"]] == ["the sea is blue"] * 3
            assert len(upstream.requests) == 3
            await _next_turn_is_valid(engine, upstream, response["id"], answers=3)

    async def test_wall_time(self, store):
        """When the time is up no new step starts: what was asked for is shown as not run."""
        now = 1_000_000.0

        @tool(effect="pure")
        async def dawdle() -> str:
            """Take an hour."""
            nonlocal now
            now += 3600
            return "at last"

        script = turns_script([Turn(calls=(call("dawdle"),)), Turn(calls=(call("dawdle"),))])
        limits = Limits(wall_time_s=60)
        async with library(script, store=store, tools=[dawdle], limits=limits, clock=lambda: now) as (
            engine,
            upstream,
        ):
            response = await created(engine, input="hi")
            assert response.incomplete_details == {"reason": "max_wall_time"}
            assert [i["output"] for i in response.output] == ["at last"]
            assert len(upstream.requests) == 1

    async def test_a_filtered_answer(self, store):
        """`content_filter` is a reason of its own."""
        script = answer_script("I must", finish_reason="content_filter")
        async with library(script, store=store) as (engine, _):
            response = await created(engine, input="hi")
            assert response.incomplete_details == {"reason": "content_filter"}


async def _next_turn_is_valid(engine, upstream, response_id, *, answers):
    """The next turn goes through, and in it every call is answered."""
    before = len(upstream.requests)
    await engine.responses.create(
        model="fake", input="and now?", previous_response_id=response_id, tool_choice="none"
    )
    (request,) = upstream.requests[before:]
    check_pairs(request)
    assert len(heard(request)) == answers


class TestObedience:
    """What the request allows is enforced, whatever the model does."""

    async def test_one_call_at_a_time(self, store):
        """`parallel_tool_calls: false`: the first call runs, the others are as if never made."""
        calls = (call("look", what="sea"), call("look", what="sky"))
        script = turns_script([Turn(calls=calls, interleaved=True), Turn(text="So.")])
        async with library(script, store=store, tools=[look]) as (engine, upstream):
            events = await streamed(engine, input="hi", parallel_tool_calls=False)
            assert kinds(events[-1]["response"]) == ["mcp_call", "message"]
            assert events[-1]["response"]["output"][0]["output"] == "the sea is blue"
            assert upstream.requests[0].body["parallel_tool_calls"] is False
            check_pairs(upstream.requests[1])

    async def test_no_tools_at_all(self, store):
        """`tool_choice: "none"`: the model's calls are dropped, its text stays."""
        calls = (call("look", what="sea"), call("ask_user"))
        async with library(answer_script("Text.", calls=calls), store=store, tools=[look]) as (
            engine,
            upstream,
        ):
            events = await streamed(engine, input="hi", tool_choice="none", tools=[ASK])
            assert kinds(events[-1]["response"]) == ["message"]
            assert events[-1]["response"]["status"] == "completed"
            assert len(upstream.requests) == 1

    async def test_only_allowed_tools(self, store):
        """`allowed_tools`: others are dropped, ours and the client's alike."""
        calls = (call("pay", amount=5), call("ask_user"), call("look", what="sea"))
        script = turns_script([Turn(calls=calls), Turn(text="So.")])
        choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]}
        async with library(script, store=store, tools=[look, pay]) as (engine, upstream):
            events = await streamed(engine, input="hi", tool_choice=choice, tools=[ASK])
            assert kinds(events[-1]["response"]) == ["mcp_call", "message"]
            assert events[-1]["response"]["output"][0]["name"] == "look"
            check_pairs(upstream.requests[1])

    async def test_a_forced_tool(self, store):
        """A forced choice drops other calls, and gives way once it is met."""
        script = turns_script(
            [
                Turn(calls=(call("pay", amount=5), call("look", what="sea"))),
                Turn(calls=(call("pay", amount=1),)),
                Turn(text="So."),
            ]
        )
        async with library(script, store=store, tools=[look, pay]) as (engine, upstream):
            response = await created(engine, input="hi", tool_choice={"type": "function", "name": "look"})
            assert [i.get("name") for i in response.output] == ["look", "pay", None]
            assert upstream.requests[0].body["tool_choice"]["function"]["name"] == "look"
            assert upstream.requests[1].body["tool_choice"] == "auto"

    async def test_a_narrowed_tool_set(self, store):
        """`{"type": "mcp", "allowed_tools": […]}` narrows what the model is offered, and what it can run."""
        script = turns_script(
            [Turn(calls=(call("pay", amount=5), call("look", what="sea"))), Turn(text="So.")]
        )
        ran = []

        @tool
        async def pay(amount: int) -> str:
            """Pay."""
            ran.append(amount)
            return "paid"

        narrowed = {"type": "mcp", "server_label": "antiphon", "allowed_tools": ["look"]}
        async with library(script, store=store, tools=[look, pay]) as (engine, upstream):
            await created(engine, input="hi", tools=[narrowed])
            assert [t["function"]["name"] for t in upstream.requests[0].body["tools"]] == ["look"]
            assert ran == []


class Staff:
    """A custom executor: a tool, and agents that may use it or one another."""

    def __init__(self):
        self.ran = []

    async def tools(self, ctx):
        return [
            ToolSchema(
                name="look",
                effect="pure",
                parameters={"type": "object", "properties": {"what": {"type": "string"}}},
            ),
            ToolSchema(name="pay", effect="once"),
            ToolSchema(
                name="boss",
                kind=ToolKind.AGENT,
                agent={"model": "boss", "instructions": "You are the boss.", "tools": ["clerk"]},
            ),
            ToolSchema(
                name="clerk",
                kind=ToolKind.AGENT,
                agent={"model": "clerk", "instructions": "You are the clerk.", "tools": ["look"]},
            ),
        ]

    async def execute(self, tool_name, tool_call_id, arguments, ctx):
        self.ran.append((tool_name, arguments))
        return f"{tool_name} done"


def staff_script(request):
    """Everybody asks the next below once, and then says so."""
    name = request.body["model"]
    if request.turn:
        return Turn(text=f"{name} says fine.", varied=False)
    match name:
        case "boss":
            return Turn(text="boss thinks.", calls=(call("clerk", task="count"),))
        case "clerk":
            return Turn(calls=(call("look", what="sea"), call("look", what="sky")))
        case _:
            return Turn(calls=(call("boss", question="how are things?"),))


class TestAgents:
    """A tool of kind `agent` is driven in a scope of its own."""

    async def test_agents_two_levels_deep(self, store):
        """Each has its model, instructions, tools and arguments; each one's text is its caller's result."""
        staff = Staff()
        async with library(staff_script, store=store, tools=[staff]) as (engine, upstream):
            events = await streamed(engine, input="hi")
            response = events[-1]["response"]
            assert [r.body["model"] for r in upstream.requests] == [
                "fake",
                "boss",
                "clerk",
                "clerk",
                "boss",
                "fake",
            ]
            assert kinds(response) == ["mcp_call", "message"]
            assert response["output"][0]["output"] == "boss says fine."
            boss, clerk = upstream.requests[1].body, upstream.requests[2].body
            assert boss["messages"][0]["content"] == "You are the boss."
            assert boss["messages"][1]["content"] == "how are things?"
            assert [t["function"]["name"] for t in boss["tools"]] == ["clerk"]
            assert [t["function"]["name"] for t in clerk["tools"]] == ["look"]
            assert clerk["messages"][1]["content"] == "count"
            assert staff.ran == [("look", {"what": "sea"}), ("look", {"what": "sky"})]

            steps = await engine.steps(response["id"])
            by_id = {step.id: step for step in steps}
            depth = [sum(1 for _ in _parents(step, by_id)) for step in steps]
            assert sorted(depth) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
            assert len(steps) == 10

    async def test_their_words_stay_inside_and_their_tokens_are_counted(self, store):
        """The parent's stream has none of their text, tools or reasoning; `usage` has all of their tokens."""
        async with library(staff_script, store=store, tools=[Staff()]) as (engine, upstream):
            events = await streamed(engine, input="hi")
            deltas = "".join(
                event["delta"] for event in events if event["type"] == "response.output_text.delta"
            )
            assert deltas == "fake says fine."
            assert len([t for t in types(events) if t == "response.output_item.added"]) == 2
            usage = events[-1]["response"]["usage"]
            assert usage["input_tokens"] == sum(len(r.raw) // 4 for r in upstream.requests)

    async def test_budgets_are_the_runs(self, store):
        """`max_tool_calls` counts what agents do too: the agent's step fails, and its caller hears of it."""
        staff = Staff()
        async with library(staff_script, store=store, tools=[staff]) as (engine, upstream):
            response = await created(engine, input="hi", max_tool_calls=3)
            assert len(staff.ran) == 1, "boss and clerk are calls as well"
            assert "The agent did not finish (max_tool_calls)" in heard(upstream.requests[-2])[0]
            assert [r.body["model"] for r in upstream.requests] == ["fake", "boss", "clerk", "boss", "fake"]
            assert response.status == "completed"
            errors = [json.loads(s.error)["code"] for s in await engine.steps(response.id) if s.error]
            assert errors == ["max_tool_calls"]

    async def test_an_agent_that_is_cut_off_is_a_failed_tool(self, store):
        """Its caller hears the reason and what there is of the text."""

        def script(request):
            if request.body["model"] == "clerk":
                return Turn(text="half a sen", finish_reason="length", varied=False)
            return Turn(text="So.") if request.turn else Turn(calls=(call("clerk", task="x"),))

        async with library(script, store=store, tools=[Staff()]) as (engine, upstream):
            response = await created(engine, input="hi")
            assert response.status == "completed"
            assert response.output[0]["status"] == "failed"
            assert "did not finish (max_output_tokens). half a sen" in heard(upstream.requests[-1])[0]

    async def test_an_agent_runs_only_tools_of_its_own(self, store):
        """A name outside of its list is not found, though the server has a tool of that name."""
        staff = Staff()

        def script(request):
            if request.body["model"] == "clerk":
                return Turn(text="Sorry.", varied=False) if request.turn else Turn(calls=(call("pay"),))
            return Turn(text="So.") if request.turn else Turn(calls=(call("clerk", task="x"),))

        async with library(script, store=store, tools=[staff]) as (engine, upstream):
            response = await created(engine, input="hi")
            assert staff.ran == []
            assert response.status == "completed"
            assert "Tool not found: pay" in heard(upstream.requests[2])[0]

    async def test_agents_side_by_side(self, store):
        """Two agents of one turn are driven at the same time, each in its own scope."""

        def script(request):
            if request.body["model"] == "clerk":
                prompt = request.messages[1]["content"]
                return Turn(text=f"{prompt} done.", varied=False)
            calls = tuple(call("clerk", task=f"task {n}") for n in range(3))
            return Turn(text="So.") if request.turn else Turn(calls=calls)

        async with library(script, store=store, tools=[Staff()]) as (engine, upstream):
            upstream.inject(None, *[FaultKind.HANG_BEFORE_HEADERS] * 3)
            pending = asyncio.create_task(created(engine, input="hi"))
            await asyncio.wait_for(upstream.until_hanging(3), 10)
            upstream.release()
            response = await pending
        assert [i["output"] for i in response.output[:3]] == [f"task {n} done." for n in range(3)]

    async def test_too_deep_is_the_steps_failure(self, store):
        """The depth cap fails the deepest agent's step; everybody above goes on."""
        async with library(staff_script, store=store, tools=[Staff()], limits=Limits(max_depth=2)) as (
            engine,
            upstream,
        ):
            response = await created(engine, input="hi")
            assert response.status == "completed"
            assert [r.body["model"] for r in upstream.requests] == ["fake", "boss", "boss", "fake"]
            steps = await engine.steps(response.id)
            assert [json.loads(s.error)["code"] for s in steps if s.error] == ["max_depth_exceeded"]


def _parents(step, by_id):
    while step.parent_step_id is not None:
        step = by_id[step.parent_step_id]
        yield step


def counts(file):
    """How many rows each table of the file has."""
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}


class TestFile:
    """What is in the SQLite file."""

    async def test_store_false_writes_nothing(self, tmp_path):
        """Plain or streamed, with tools or without: not one row more."""
        file = tmp_path / "work.db"
        script = turns_script([Turn(calls=(call("look", what="sea"),)), Turn(text="So.")])
        async with library(script, store=f"sqlite:///{file}", tools=[look]) as (engine, _):
            await created(engine, input="stored")
            before = counts(file)
            response = await created(engine, input="hi", store=False)
            events = await streamed(engine, input="hi", store=False)
            assert counts(file) == before
            assert before["steps"] == 3
            assert kinds(response) == kinds(events[-1]["response"]) == ["mcp_call", "message"]
            for response_id in (response.id, events[-1]["response"]["id"]):
                with pytest.raises(RequestError):
                    await engine.responses.retrieve(response_id)
            with pytest.raises(RequestError):
                await engine.responses.create(model="fake", input="hi", store=False, background=True)

    async def test_two_engines_on_one_file(self, tmp_path):
        """The second is refused with a message that names the file; the first goes on."""
        url = f"sqlite:///{tmp_path / 'work.db'}"
        async with library(store=url) as (engine, upstream):
            with pytest.raises(ConfigurationError, match=r"work\.db"):
                async with Engine(store=url, upstream=upstream.url + "/v1"):
                    pass
            assert (await created(engine, input="hi")).status == "completed"
        async with library(store=url) as (engine, _):
            assert len((await engine.list_responses()).responses) == 1

    async def test_work_outlives_the_engine(self, tmp_path):
        """What one engine left unfinished the next one finishes, for whoever asks."""
        url = f"sqlite:///{tmp_path / 'work.db'}"
        async with FakeUpstream(answer_script("Done.")) as upstream:
            upstream.inject(FaultKind.HANG_MID_STREAM)
            async with Engine(store=url, upstream=upstream.url + "/v1") as engine:
                begun = await engine.responses.create(model="fake", input="hi", background=True)
                await upstream.until_hanging()
            upstream.release()
            async with Engine(store=url, upstream=upstream.url + "/v1") as engine:
                events = await followed(engine, begun.id)
        assert events[-1]["response"]["status"] == "completed"
        assert fold(events)["output"] == events[-1]["response"]["output"]


class TestPrompts:
    """The messages of turn n+1 begin, byte for byte, with those of turn n."""

    def check(self, upstream, count):
        requests = upstream.requests
        assert len(requests) == count
        for earlier, later in itertools.pairwise(requests):
            assert later.extends(earlier)
            assert len(later.messages_raw) > len(earlier.messages_raw)
        for request in requests:
            check_pairs(request)

    async def test_in_a_loop_with_tools(self, store):
        """Parallel calls, failures, text beside calls, unicode, big arguments: nothing is written anew."""
        turns = [
            Turn(
                text="One.",
                calls=(call("look", what="sea"), call("broken"), call("made_up", x=[1, {"y": "é"}])),
            ),
            Turn(calls=(ScriptedCall("look", '{ "what" :  "odd   spacing", "what": "twice"}'),)),
            Turn(calls=(ScriptedCall("look", "{not json"), ScriptedCall("look", ""))),
            Turn(text="é \U0001f600 \u2028 </script>", calls=(call("look", what="x" * 5000),)),
            Turn(text="Done."),
        ]
        async with library(turns_script(turns), store=store, tools=[look, broken]) as (engine, upstream):
            await created(engine, input="hi", instructions="Be brief.")
            self.check(upstream, 5)

    @pytest.mark.parametrize("mode", ["plain", "stream", "background"])
    async def test_across_turns(self, store, mode):
        """History read back from the store gives the very same messages that the loop had sent."""
        turns = [
            Turn(reasoning="Hm, well.", text="One.", calls=(call("look", what="sea"), call("broken"))),
            Turn(reasoning="So.", text="Done."),
        ]
        async with library(turns_script(turns), store=store, tools=[look, broken]) as (engine, upstream):
            previous = None
            for turn in range(4):
                asked = {
                    "input": [{"role": "user", "content": f"turn {turn} é"}],
                    "previous_response_id": previous,
                }
                if mode == "plain":
                    previous = (await created(engine, **asked)).id
                elif mode == "stream":
                    previous = (await streamed(engine, **asked))[-1]["response"]["id"]
                else:
                    previous = (await created(engine, **asked, background=True)).id
                    await told(engine.responses.retrieve(previous, stream=True))
            self.check(upstream, 8)

    async def test_with_functions_of_the_client(self, store):
        """The client's calls and outputs stay where they were."""
        turns = [
            Turn(text="Let me ask.", calls=(call("ask_user"), call("ask_user", why="again"))),
            Turn(text="Fine."),
            Turn(text="More."),
        ]

        def script(request):
            return turns[min(request.turn, 1)]

        async with library(script, store=store) as (engine, upstream):
            response = await created(engine, input="hi", tools=[ASK])
            for words in ("yes", "no"):
                outputs = [
                    {"type": "function_call_output", "call_id": item["call_id"], "output": words}
                    for item in response.output
                    if item["type"] == "function_call"
                ]
                answered = await created(engine, input=outputs, previous_response_id=response.id, tools=[ASK])
                response = await created(engine, input="next", previous_response_id=answered.id, tools=[ASK])
            self.check(upstream, 5)

    async def test_with_mixed_calls(self, store):
        """Ours and the client's in one answer, the client's outputs coming a turn later."""
        mixed = (call("look", what="sea"), call("ask_user"), call("broken"), call("ask_user", n=2))

        def script(request):
            match request.turn:
                case 0:
                    return Turn(calls=(call("look", what="first"),))
                case 1:
                    return Turn(text="Mixed.", reasoning="Hm.", calls=mixed)
                case _:
                    return Turn(text="Done.")

        async with library(script, store=store, tools=[look, broken]) as (engine, upstream):
            response = await created(engine, input="hi", tools=[ASK])
            assert kinds(response)[-4:] == ["mcp_call", "function_call", "mcp_call", "function_call"]
            outputs = [
                {
                    "type": "function_call_output",
                    "call_id": item["call_id"],
                    "output": [{"type": "input_text", "text": "ok"}],
                }
                for item in response.output
                if item["type"] == "function_call"
            ]
            answered = await created(
                engine, input=outputs[::-1], previous_response_id=response.id, tools=[ASK]
            )
            await created(engine, input="next", previous_response_id=answered.id, tools=[ASK])
            self.check(upstream, 5)

    async def test_after_a_budget_was_spent(self, store):
        """Calls that were not run are answered the same way ever after."""
        turns = [Turn(calls=(call("look", what="sea"), call("look", what="sky"))), Turn(text="Done.")]
        async with library(turns_script(turns), store=store, tools=[look]) as (engine, upstream):
            first = await created(engine, input="hi", max_tool_calls=1)
            assert first.status == "incomplete"
            second = await created(engine, input="on", previous_response_id=first.id, tool_choice="none")
            await created(engine, input="and on", previous_response_id=second.id, tool_choice="none")
            self.check(upstream, 3)

    async def test_with_agents(self, store):
        """Each scope's own messages only grow."""
        async with library(staff_script, store=store, tools=[Staff()]) as (engine, upstream):
            await created(engine, input="hi")
            for model in ("fake", "boss", "clerk"):
                first, second = (r for r in upstream.requests if r.body["model"] == model)
                assert second.extends(first)

    async def test_after_a_takeover(self, tmp_path):
        """The next engine asks with the same bytes."""
        url = f"sqlite:///{tmp_path / 'work.db'}"
        turns = [Turn(text="One.", calls=(call("look", what="sea"),)), Turn(text="Done.")]
        async with FakeUpstream(turns_script(turns)) as upstream:
            options = {"store": url, "upstream": upstream.url + "/v1", "tools": [look]}
            upstream.inject(None, FaultKind.HANG_BEFORE_HEADERS)
            async with Engine(**options) as engine:
                begun = await engine.responses.create(model="fake", input="hi", background=True)
                await upstream.until_hanging()
            upstream.release()
            async with Engine(**options) as engine:
                await told(engine.responses.retrieve(begun.id, stream=True))
            before, again = upstream.requests[1:3]
            assert again.messages_raw == before.messages_raw


class TestMounted:
    """`create_app(engine)` inside another application, under a prefix."""

    @pytest.fixture
    async def mounted(self, store):
        """A Starlette application with a page of its own and the engine under /ai, on a real port."""

        async def home(_request):
            return PlainTextResponse("home")

        async with contextlib.AsyncExitStack() as stack:
            engine, _ = await stack.enter_async_context(library(answer_script("Hello."), store=store))
            ours = create_app(engine, ServerOptions(api_keys=("secret",)))
            app = Starlette(routes=[Route("/", home), Mount("/ai", app=ours)])
            config = uvicorn.Config(app, lifespan="off", access_log=False, log_config=None)
            yield await stack.enter_async_context(_running(config))

    async def test_the_wire_is_there_under_the_prefix(self, mounted):
        """Creating, streaming, reading; the application around keeps its own pages."""
        keyed = {"Authorization": "Bearer secret"}
        async with aiohttp.ClientSession(mounted) as session:
            async with session.get("/") as answer:
                assert await answer.text() == "home"
            async with session.post(
                "/ai/v1/responses", json={"model": "fake", "input": "hi"}, headers=keyed
            ) as answer:
                assert answer.status == 200
                made = judge_response(await answer.json())
            async with session.get(f"/ai/v1/responses/{made['id']}", headers=keyed) as answer:
                assert await answer.json() == made
            body = {"model": "fake", "input": "hi", "stream": True}
            async with session.post("/ai/v1/responses", json=body, headers=keyed) as answer:
                raw = await answer.read()
            events = judge(read_frames(raw.removesuffix(b"data: [DONE]\n\n")))
            assert events[-1]["response"]["status"] == "completed"
            async with session.get("/v1/responses", headers=keyed) as answer:
                assert answer.status == 404

    async def test_the_border_is_there_under_the_prefix(self, mounted):
        """Keys are asked for, health is open, errors have the wire's form."""
        async with aiohttp.ClientSession(mounted) as session:
            async with session.get("/ai/v1/models") as answer:
                assert answer.status == 401
                assert set((await answer.json())["error"]) == {"message", "type", "param", "code"}
            async with session.get("/ai/health") as answer:
                assert answer.status == 200
            async with session.get("/ai/nothing", headers={"Authorization": "Bearer secret"}) as answer:
                assert answer.status == 404
                assert (await answer.json())["error"]["type"] == "not_found_error"

    async def test_served_alone_the_app_starts_the_engine(self, store):
        """Without anything around it the application's lifespan is the engine's."""
        async with FakeUpstream() as upstream:
            engine = Engine(store=store, upstream=upstream.url + "/v1")
            async with Serving(engine) as served:
                assert engine.is_running
                assert (await served.create({"input": "hi"}))["status"] == "completed"
            assert not engine.is_running


@contextlib.asynccontextmanager
async def _running(config):
    """A uvicorn server in this event loop; gives its URL."""

    class Server(uvicorn.Server):
        listening = asyncio.Event()

        async def startup(self, sockets=None):
            await super().startup(sockets)
            self.listening.set()

        def capture_signals(self):
            return contextlib.nullcontext()

    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await asyncio.wait_for(server.listening.wait(), 10)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, 20)


async def test_executors_and_functions_live_side_by_side(store):
    """`tools` takes functions, `FunctionToolExecutor`s and executors of one's own together."""
    script = turns_script(
        [
            Turn(calls=(call("look", what="sea"), call("pay", amount=3), call("clerk", task="x"))),
            Turn(text="So."),
        ]
    )

    class Remote:
        async def tools(self, ctx):
            return [ToolSchema(name="clerk", kind=ToolKind.HTTP)]

        async def execute(self, tool_name, tool_call_id, arguments, ctx):
            return arguments

    async with library(script, store=store, tools=[look, FunctionToolExecutor([pay]), Remote()]) as (
        engine,
        _,
    ):
        response = await created(engine, input="hi")
    assert [i["output"] for i in response.output[:3]] == ["the sea is blue", "paid 3", '{"task":"x"}']


async def test_two_tools_of_one_name_are_refused():
    """Names are unique: the engine says which two clash."""
    with pytest.raises(ConfigurationError, match="look"):
        async with library(tools=[look, FunctionToolExecutor([look])]) as (engine, _):
            await engine.responses.create(model="fake", input="hi")
