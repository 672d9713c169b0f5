"""Which tools a request gets, and what of the model's calls is let through."""

import asyncio
import contextlib
import json
from itertools import pairwise

import pytest

from antiphon import Limits, ModelRoute, tool
from antiphon.testing import FaultKind, ScriptedCall, Turn, answer_script, turns_script
from serving import read_frames, serving, types

pytestmark = pytest.mark.anyio

CLIENTS = {"type": "function", "name": "look_up", "parameters": {"type": "object", "properties": {}}}


@tool(effect="pure")
async def weather(city: str = "") -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@tool(effect="pure")
async def clock() -> str:
    """The time."""
    return "noon"


def offered(s, nth=-1):
    return sorted(each["function"]["name"] for each in s.upstream.requests[nth].body.get("tools") or ())


@pytest.mark.parametrize(
    ("request_part", "headers", "names"),
    [
        ({}, {}, ["clock", "weather"]),
        ({}, {"x-antiphon-tools": "none"}, []),
        ({"tools": [CLIENTS]}, {}, ["clock", "look_up", "weather"]),
        ({"tools": [CLIENTS]}, {"x-antiphon-tools": "none"}, ["look_up"]),
        ({"tools": [{"type": "mcp", "server_label": "antiphon", "allowed_tools": ["clock"]}]}, {}, ["clock"]),
        (
            {
                "tools": [
                    {"type": "mcp", "server_label": "antiphon", "allowed_tools": {"tool_names": ["weather"]}}
                ]
            },
            {},
            ["weather"],
        ),
        ({"tools": [{"type": "mcp", "server_label": "antiphon", "allowed_tools": []}]}, {}, []),
        ({"tools": [{"type": "mcp", "server_label": "antiphon"}]}, {}, ["clock", "weather"]),
        ({"tools": [{**CLIENTS, "name": "clock"}]}, {}, ["clock", "weather"]),
    ],
)
async def test_the_tools_that_a_model_is_offered(request_part, headers, names):
    """Ours unless switched off or narrowed, and the client's own beside them."""
    async with serving(tools=[weather, clock]) as s:
        await s.create({"input": "hi", **request_part}, headers=headers)
        assert offered(s) == names


async def test_a_choice_of_none_means_no_calls():
    """With `tool_choice: none` no call of the model gets through, whatever it does."""
    calls = (ScriptedCall("weather", {"city": "Oslo"}), ScriptedCall("look_up"))
    async with serving(answer_script("No calls.", calls=calls), tools=[weather]) as s:
        events = await s.stream({"input": "hi", "tools": [CLIENTS], "tool_choice": "none"})
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["message"]


@pytest.mark.parametrize(
    ("choice", "called"),
    [
        ({"type": "function", "name": "look_up"}, ["look_up"]),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look_up"}]},
            ["look_up"],
        ),
        ("auto", ["look_up", "weather", "look_up"]),
    ],
)
async def test_only_allowed_calls_get_through(choice, called):
    """Calls of tools that the choice does not allow are dropped."""
    calls = (
        ScriptedCall("look_up", {"n": 1}),
        ScriptedCall("weather", {"city": "x"}),
        ScriptedCall("look_up", {"n": 2}),
    )
    async with serving(answer_script("", calls=calls), tools=[weather]) as s:
        events = await s.stream({"input": "hi", "tools": [CLIENTS], "tool_choice": choice})
    names = [item["name"] for item in events[-1]["response"]["output"]]
    assert set(names) == set(called)


async def test_one_call_at_a_time():
    """`parallel_tool_calls: false` lets one call of an answer through."""
    calls = (ScriptedCall("look_up", {"n": 1}), ScriptedCall("look_up", {"n": 2}))
    async with serving(answer_script("", calls=calls)) as s:
        made = await s.create({"input": "hi", "tools": [CLIENTS], "parallel_tool_calls": False})
    assert [json.loads(item["arguments"]) for item in made["output"]] == [{"n": 1}]


async def test_a_forced_choice_does_not_loop():
    """A forced server tool is called once; after its result the model may answer."""
    script = turns_script([Turn(calls=(ScriptedCall("clock"),)), Turn(text="It is noon.")])
    async with serving(script, tools=[clock]) as s:
        made = await s.create({"input": "hi", "tool_choice": {"type": "function", "name": "clock"}})
        assert made["status"] == "completed"
        assert len(s.upstream.requests) == 2
        assert s.upstream.requests[1].body.get("tool_choice", "auto") == "auto"


async def test_a_call_of_an_unknown_tool_does_not_hang():
    """A name that nobody offered does not end as a call that nobody can answer silently."""
    script = turns_script(
        [Turn(text="Hm.", calls=(ScriptedCall("invented", {"a": 1}),)), Turn(text="Sorry.")]
    )
    async with serving(script, tools=[clock]) as s:
        events = await s.stream({"input": "hi"})
    assert types(events)[-1] in {"response.completed", "response.incomplete"}


async def test_a_route_has_its_own_tools():
    """Tools bound to an alias are those that its requests get."""
    models = {
        "with": ModelRoute(upstreams=("default",), model="fake", tools=("clock",)),
        "without": ModelRoute(upstreams=("default",), model="fake", tools=()),
    }
    async with serving(tools=[weather, clock], models=models) as s:
        await s.create({"model": "with", "input": "hi"})
        assert offered(s) == ["clock"]
        made = await s.create({"model": "without", "input": "hi"})
        assert offered(s) == []
        assert made["model"] == "without"
        assert s.upstream.requests[-1].body["model"] == "fake"


async def test_results_of_megabytes_arrive_whole():
    """A tool may give megabytes: the stream, the response and the model get all of it."""

    @tool(effect="pure")
    async def big() -> str:
        """Much."""
        return "x" * 3_000_000

    script = turns_script([Turn(calls=(ScriptedCall("big"), ScriptedCall("big"))), Turn(text="Much.")])
    async with serving(script, tools=[big]) as s:
        answer = await s.post({"model": "fake", "input": "hi", "stream": True})
        events = read_frames(answer.raw.removesuffix(b"data: [DONE]\n\n"))
        assert [len(item.get("output", "")) for item in events[-1]["response"]["output"]] == [
            3_000_000
        ] * 2 + [0]
        sent = [m["content"] for m in s.upstream.requests[1].body["messages"] if m["role"] == "tool"]
        assert [len(text) for text in sent] == [3_000_000] * 2


async def test_parallel_tools_run_at_the_same_time_within_their_bound():
    """Calls of one turn run side by side, as many as the limit says."""
    running = most = 0
    gate = asyncio.Event()

    @tool(effect="pure")
    async def slow() -> str:
        """Slow."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            gate.set()
        await asyncio.wait_for(gate.wait(), 5)
        running -= 1
        return "done"

    script = turns_script([Turn(calls=tuple(ScriptedCall("slow") for _ in range(9))), Turn(text="Done.")])
    async with serving(script, tools=[slow], limits=Limits(parallel_tools=3)) as s:
        events = await s.stream({"input": "hi"})
    assert most == 3
    assert [item["status"] for item in events[-1]["response"]["output"]] == ["completed"] * 10


async def test_a_stopping_server_cuts_its_streams():
    """A stream of a server that stops has no clean end: its reader knows that there is more."""
    async with serving(answer_script("word " * 50)) as s:
        s.upstream.inject(FaultKind.HANG_MID_STREAM)
        answer = await s.session.post("/v1/responses", json={"model": "fake", "input": "hi", "stream": True})
        raw = await answer.content.readuntil(b"output_text.delta")
        await s.upstream.until_hanging()
        s.engine.begin_stop()
        with contextlib.suppress(Exception):
            async for chunk in answer.content.iter_any():
                raw += chunk
        assert b"[DONE]" not in raw
        refused = await s.post({"model": "fake", "input": "more"})
        assert refused.status == 503
        assert refused.error["code"] == "server_stopping"


async def test_cancel_and_delete_and_read_all_at_once(tmp_path):
    """Thirty responses, each cancelled, deleted and read at the same time: no answer is a 500, nothing hangs."""
    async with serving(store=f"sqlite:///{tmp_path / 'work.db'}", pace_s=0.002) as s:
        begun = [await s.create({"input": f"n{n}", "background": True}) for n in range(30)]
        answers = await asyncio.gather(
            *(
                request
                for response in begun
                for request in (
                    s.post(None, f"/v1/responses/{response['id']}/cancel"),
                    s.ask("DELETE", f"/v1/responses/{response['id']}"),
                    s.get(f"/v1/responses/{response['id']}"),
                    s.get(f"/v1/responses/{response['id']}/steps"),
                    s.ask("DELETE", f"/v1/responses/{response['id']}"),
                )
            )
        )
        assert {answer.status for answer in answers} <= {200, 404}
        async with asyncio.timeout(5):
            while s.engine.active:
                await asyncio.sleep(0.01)
        assert (await s.get("/v1/responses")).json["data"] == []


async def test_a_conversation_of_many_turns_stays_valid(tmp_path):
    """Forty turns with tools on both sides: each is valid, and prompts extend one another byte for byte."""

    def script(request):
        if request.tool_results:
            return Turn(text="Done with it.")
        return Turn(
            text="On it.", calls=(ScriptedCall("clock"), ScriptedCall("look_up", {"turn": request.prompt}))
        )

    async with serving(script, store=f"sqlite:///{tmp_path / 'work.db'}", tools=[clock]) as s:
        previous = None
        for turn in range(20):
            asked = await s.create(
                {"input": f"turn {turn}", "previous_response_id": previous, "tools": [CLIENTS]}
            )
            call = next(item for item in asked["output"] if item["type"] == "function_call")
            output = {"type": "function_call_output", "call_id": call["call_id"], "output": "found"}
            done = await s.create(
                {"input": [output], "previous_response_id": asked["id"], "tools": [CLIENTS]}
            )
            previous = done["id"]
        requests = s.upstream.requests
        assert len(requests) == 40
        assert all(later.extends(earlier) for earlier, later in pairwise(requests))
        await s.replay(previous)
