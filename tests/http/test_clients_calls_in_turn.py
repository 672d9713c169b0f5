"""Streams as clients read them that follow one item at a time (LangChain, LlamaIndex)."""

import itertools
import json

import pytest

from antiphon import tool
from antiphon.testing.scripts import ScriptedCall, Turn, turns_script
from serving import serving

pytestmark = pytest.mark.anyio

CITIES = ("Paris", "Oslo", "Lima")
CALLS = tuple(ScriptedCall("get_weather", {"city": city}) for city in CITIES)
WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}


@tool(effect="pure")
def clock() -> str:
    """The time."""
    return "noon"


def places(events):
    """The output indexes in the order in which they are spoken of, repetitions left out."""
    spoken = (event["output_index"] for event in events if "output_index" in event)
    return [place for place, _ in itertools.groupby(spoken)]


def calls_as_langchain_reads_them(events):
    """Pieces of arguments belong to the call that was last added."""
    calls = []
    for event in events:
        if event["type"] == "response.output_item.added" and event["item"]["type"] == "function_call":
            calls.append([event["item"]["call_id"], ""])
        elif event["type"] == "response.function_call_arguments.delta":
            calls[-1][1] += event["delta"]
    return [(call_id, json.loads(arguments)) for call_id, arguments in calls]


@pytest.mark.parametrize("interleaved", [False, True])
async def test_calls_are_told_one_after_the_other(interleaved):
    """A client's call is done before anything else is spoken of, however the model mixes them."""
    turn = Turn(text="Looking.", reasoning="Hm.", calls=CALLS, interleaved=interleaved)
    async with serving(turns_script([turn])) as s:
        events = await s.stream({"input": "hi", "tools": [WEATHER]})
    output = events[-1]["response"]["output"]
    made = [item for item in output if item["type"] == "function_call"]
    assert places(events) == [0, 1, 2, 3, 4]
    assert [json.loads(item["arguments"])["city"] for item in made] == list(CITIES)
    assert calls_as_langchain_reads_them(events) == [
        (item["call_id"], json.loads(item["arguments"])) for item in made
    ]


async def test_the_first_call_is_streamed_as_it_comes():
    """Holding back what follows costs the first call nothing: its pieces come before the model has ended."""
    async with serving(turns_script([Turn(calls=CALLS[:1])])) as s:
        events = await s.stream({"input": "hi", "tools": [WEATHER]})
    deltas = [e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert len(deltas) > 1


async def test_a_call_of_ours_between_two_of_the_clients():
    """Ours waits for its place too; only its end, which comes when its tool has ended, is out of turn."""
    calls = (CALLS[0], ScriptedCall("clock", {}), CALLS[1])
    async with serving(turns_script([Turn(calls=calls, interleaved=True)]), tools=[clock]) as s:
        events = await s.stream({"input": "hi", "tools": [WEATHER]})
    kinds = [item["type"] for item in events[-1]["response"]["output"]]
    assert kinds == ["function_call", "mcp_call", "function_call"]
    assert places(events) == [0, 1, 2, 1]
