"""Event streams over real sockets: what they carry, in which order, and how they end."""

import asyncio
import json

import pytest

from antiphon import tool
from antiphon.testing import ScriptedCall, Turn, answer_script, turns_script
from serving import judge, read_stream, serving, text_of, types

pytestmark = pytest.mark.anyio

DONE = b"data: [DONE]\n\n"
LOOK_UP = {"type": "function", "name": "look_up", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'work.db'}"


@tool(effect="pure")
async def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@tool(effect="pure")
async def failing(why: str) -> str:
    """Fails."""
    raise ValueError(why)


def of_type(events, kind):
    return [event for event in events if event["type"] == kind]


def joined(events, kind, **where):
    return "".join(
        event["delta"]
        for event in of_type(events, kind)
        if all(event[key] == value for key, value in where.items())
    )


# --- what streams carry ------------------------------------------------------------------------------


async def test_text_comes_in_order(store):
    """A plain answer: every event of the wire's order, explicit indexes, and deltas that make the text."""
    async with serving(answer_script("one two three", varied=False), store=store) as s:
        events = await s.stream({"input": "hi"})
    assert types(events) == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added", *["response.output_text.delta"] * 3, "response.output_text.done",
        "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in events] == list(range(11))
    assert joined(events, "response.output_text.delta") == "one two three"
    for event in of_type(events, "response.output_text.delta"):
        assert (event["output_index"], event["content_index"], event["logprobs"]) == (0, 0, [])
    assert events[2]["item"]["content"] == []
    assert events[0]["response"]["output"] == []


async def test_reasoning_is_closed_before_the_message_opens():
    """Raw reasoning has events and an item of its own, which ends before the answer begins."""
    async with serving(answer_script("Answer.", reasoning="I think so.", varied=False)) as s:
        events = await s.stream({"input": "hi"})
    done = [event["item"]["type"] for event in of_type(events, "response.output_item.done")]
    assert done == ["reasoning", "message"]
    assert (
        types(events).index("response.output_item.done")
        < [i for i, e in enumerate(events) if e["type"] == "response.output_item.added"][1]
    )
    assert joined(events, "response.reasoning_text.delta") == "I think so."
    assert "response.reasoning.delta" not in types(events)
    reasoning = events[-1]["response"]["output"][0]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "I think so."}]
    assert reasoning["summary"] == []


async def test_a_refusal_is_a_part_of_its_own():
    """A refusal is told as refusal, not as text."""
    async with serving(answer_script("", refusal="I will not.", varied=False)) as s:
        events = await s.stream({"input": "hi"})
        made = await s.create({"input": "hi"})
    assert joined(events, "response.refusal.delta") == "I will not."
    assert "response.output_text.delta" not in types(events)
    for response in (events[-1]["response"], made):
        assert response["output"][0]["content"] == [{"type": "refusal", "refusal": "I will not."}]


async def test_interleaved_parallel_calls_are_never_mixed(store):
    """Pieces of three calls that arrive in turns end up in their own items, ids and arguments."""
    arguments = [{"city": name * 12} for name in ("Oslo", "Rome", "Lima")]
    calls = tuple(ScriptedCall("look_up", each) for each in arguments)
    script = turns_script([Turn(text="Looking.", calls=calls, interleaved=True)])
    async with serving(script, store=store) as s:
        events = await s.stream({"input": "hi", "tools": [LOOK_UP]})
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", *["function_call"] * 3]
    assert [json.loads(item["arguments"]) for item in output[1:]] == arguments
    assert len({item["id"] for item in output}) == 4
    assert len({item["call_id"] for item in output[1:]}) == 3
    for index, item in enumerate(output[1:], 1):
        deltas = joined(
            events, "response.function_call_arguments.delta", item_id=item["id"], output_index=index
        )
        assert deltas == item["arguments"]
    for event in of_type(events, "response.output_item.added")[1:]:
        assert event["item"]["arguments"] == ""
        assert event["item"]["status"] == "in_progress"
        assert event["item"]["call_id"]
        assert event["item"]["name"] == "look_up"


async def test_server_tools_are_mcp_calls_and_never_function_calls(store):
    """A tool that we run is told as `mcp_call` with our label; nothing in it asks the client to act."""
    script = turns_script(
        [
            Turn(
                calls=(ScriptedCall("weather", {"city": "Oslo"}), ScriptedCall("failing", {"why": "no luck"}))
            ),
            Turn(text="Well."),
        ]
    )
    async with serving(script, store=store, tools=[weather, failing]) as s:
        events = await s.stream({"input": "hi"})
    assert not [kind for kind in types(events) if "function_call" in kind]
    good, bad, _ = events[-1]["response"]["output"]
    assert (good["type"], good["server_label"], good["status"]) == ("mcp_call", "antiphon", "completed")
    assert (good["output"], good["error"]) == ("sunny in Oslo", None)
    assert bad["status"] == "failed"
    assert bad["output"] is None
    assert bad["error"]["type"] == "mcp_tool_execution_error"
    assert "no luck" in json.dumps(bad["error"])
    for kind in ("in_progress", "completed", "failed"):
        assert f"response.mcp_call.{kind}" in types(events)
    assert "response.mcp_call_arguments.done" in types(events)
    assert joined(events, "response.mcp_call_arguments.delta", item_id=good["id"]) == '{"city":"Oslo"}'
    told = [m["content"] for m in s.upstream.requests[1].body["messages"] if m["role"] == "tool"]
    assert told[0] == "sunny in Oslo"
    assert "no luck" in told[1]


async def test_server_and_client_calls_of_one_turn(store):
    """The server's calls are run first, then the response completes with the client's calls open."""
    calls = (
        ScriptedCall("look_up", {"n": 1}),
        ScriptedCall("weather", {"city": "Oslo"}),
        ScriptedCall("look_up", {"n": 2}),
    )
    script = turns_script([Turn(text="Both.", calls=calls, interleaved=True), Turn(text="Done.")])
    async with serving(script, store=store, tools=[weather]) as s:
        events = await s.stream({"input": "hi", "tools": [LOOK_UP]})
        response = events[-1]["response"]
        assert [item["type"] for item in response["output"]] == [
            "message", "function_call", "mcp_call", "function_call",
        ]  # fmt: skip
        assert response["status"] == "completed"
        assert response["output"][2]["output"] == "sunny in Oslo"
        assert len(s.upstream.requests) == 1
        outputs = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": f"found {n}"}
            for n, item in enumerate(response["output"])
            if item["type"] == "function_call"
        ]
        after = await s.create({"input": outputs, "previous_response_id": response["id"], "tools": [LOOK_UP]})
        assert text_of(after).endswith("Done.")
    messages = s.upstream.requests[-1].body["messages"]
    answer = next(m for m in messages if m["role"] == "assistant")
    results = {m["tool_call_id"]: m["content"] for m in messages if m["role"] == "tool"}
    assert [results[call["id"]] for call in answer["tool_calls"]] == ["found 1", "sunny in Oslo", "found 3"]


async def test_the_cut_item_is_last_and_incomplete(store):
    """An answer cut by its length: `response.incomplete` with the reason, its last item incomplete too."""
    for turn in (
        {"text": "half a sen"},
        {"text": "", "reasoning": "half a thou"},
        {"text": "first", "calls": (ScriptedCall("look_up", '{"city": "Os'),)},
    ):
        async with serving(answer_script(**turn, finish_reason="length"), store=store) as s:
            body = {"input": "hi", "tools": [LOOK_UP]}
            events = await s.stream(body)
            made = await s.create(body)
        assert types(events)[-1] == "response.incomplete"
        for response in (events[-1]["response"], made):
            assert response["status"] == "incomplete"
            assert response["incomplete_details"] == {"reason": "max_output_tokens"}
            assert response["output"][-1]["status"] == "incomplete"
            assert all(item["status"] == "completed" for item in response["output"][:-1])


async def test_a_turn_follows_an_incomplete_one():
    """After a call was cut, the next turn is still possible: nobody can answer half a call."""
    script = turns_script([Turn(calls=(ScriptedCall("look_up", '{"city": "Os'),), finish_reason="length")])
    async with serving(script) as s:
        cut = await s.create({"input": "hi", "tools": [LOOK_UP]})
        assert cut["status"] == "incomplete"
        await s.create({"input": "go on", "previous_response_id": cut["id"], "tools": [LOOK_UP]})
    roles = [(m["role"], m.get("tool_calls")) for m in s.upstream.requests[1].body["messages"]]
    assert roles == [("user", None), ("user", None)]


async def test_a_content_filter_ends_incomplete():
    """`content_filter` is a reason of its own."""
    async with serving(answer_script("Something", finish_reason="content_filter")) as s:
        events = await s.stream({"input": "hi"})
    assert types(events)[-1] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "content_filter"}


async def test_an_empty_answer_completes():
    """A model that says nothing at all still ends its response properly."""
    async with serving(answer_script("")) as s:
        events = await s.stream({"input": "hi"})
        made = await s.create({"input": "hi"})
    assert types(events) == ["response.created", "response.in_progress", "response.completed"]
    assert made["output"] == []


async def test_odd_characters_arrive_unharmed(store):
    """Line separators, quotes, emoji and carriage returns stay inside their event."""
    text = 'a\u2028b\u2029c\x85d \r\n\r\n \n\n data: [DONE] \n\nevent: error \\ " 🦊 é \u202e end'
    async with serving(answer_script(text, varied=False), store=store) as s:
        events = await s.stream({"input": "hi"})
        assert text_of(events[-1]["response"]) == text
        assert joined(events, "response.output_text.delta") == text
        assert (await s.replay(events[0]["response"]["id"])) == events


async def test_forty_streams_at_once_lose_nothing():
    """Forty streams for three seconds: every event arrives, in order, and says what the model said."""
    text = "".join(f"w{n} " for n in range(60))
    async with serving(answer_script(text, varied=False), pace_s=0.05) as s:
        answers = await asyncio.gather(
            *(s.post({"model": "fake", "input": f"n{n}", "stream": True}) for n in range(40))
        )
    assert len({answer.headers["x-antiphon-response-id"] for answer in answers}) == 40
    for answer in answers:
        events = read_stream(answer)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert joined(events, "response.output_text.delta") == text
    judge(read_stream(answers[0]))
