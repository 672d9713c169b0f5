"""Turns that clients send back in forms of their own."""

import pytest

from antiphon.testing.scripts import ScriptedCall, Turn, turns_script
from serving import serving

pytestmark = pytest.mark.anyio

CALLS = tuple(ScriptedCall("get_weather", {"city": city}) for city in ("Paris", "Oslo"))
WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
ASKED = {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}
SCRIPT = turns_script([Turn(text="Let me look.", reasoning="Hm.", calls=CALLS), Turn(text="Sunny.")])


def results(output):
    return [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "sunny"}
        for item in output
        if item["type"] == "function_call"
    ]


def without_id(item):
    return {key: value for key, value in item.items() if key not in {"id", "status"}}


def as_the_ai_sdk_sends_it(item):
    """References to texts and reasoning, but calls whole and without their ids."""
    if item["type"] == "function_call":
        return without_id(item)
    return {"type": "item_reference", "id": item["id"]}


def bare(item):
    """Everything whole, nothing with an id."""
    if item["type"] == "message":
        return {"role": "assistant", "content": item["content"][0]["text"]}
    return without_id(item)


@pytest.mark.parametrize("form", [as_the_ai_sdk_sends_it, bare, dict])
async def test_an_answer_that_comes_back_is_one_message_again(form):
    """Templates that want roles to alternate never see two assistant messages for one answer."""
    async with serving(SCRIPT) as s:
        first = await s.create({"input": [ASKED], "tools": [WEATHER]})
        back = [form(item) for item in first["output"] if form is not bare or item["type"] != "reasoning"]
        await s.create({"input": [ASKED, *back, *results(first["output"])], "tools": [WEATHER]})
        chained = {"previous_response_id": first["id"], "input": results(first["output"])}
        await s.create({**chained, "tools": [WEATHER]})
    sent_back, by_id = s.upstream.requests[1].messages_raw, s.upstream.requests[2].messages_raw
    roles = [message["role"] for message in s.upstream.requests[1].body["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]
    assert sent_back == by_id, "the upstream's prompt cache sees the same bytes either way"
