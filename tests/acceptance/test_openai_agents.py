"""openai-agents in front of us: its own tools on its side, ours on ours, streams, types and turns."""

import json

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

from antiphon import tool
from antiphon.testing import ScriptedCall, Turn, answer_script
from serving import serving

pytestmark = pytest.mark.anyio

QUIET = RunConfig(tracing_disabled=True)


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'work.db'}"


def agent_of(s, client, **options):
    """An agent whose model is served by us."""
    model = OpenAIResponsesModel("fake", client)
    return Agent(**{"name": "guide", "instructions": "Guide people.", "model": model, **options})


def client_of(s):
    return AsyncOpenAI(base_url=s.url + "/v1", api_key="any")


def calling(*names):
    """A model that calls these tools in one turn, then quotes every result."""

    def script(request):
        results = [m["content"] for m in request.messages if m["role"] == "tool"]
        if results:
            return Turn(text=" and ".join(results), varied=False)
        return Turn(
            text="One moment.",
            reasoning="I need tools.",
            calls=tuple(
                ScriptedCall(name, {"city": city})
                for name, city in zip(names, ("Oslo", "Rome"), strict=False)
            ),
            interleaved=True,
        )

    return script


def clients_tool(ran):
    @function_tool
    def population(city: str) -> str:
        """How many people live in a city."""
        ran.append(city)
        return f"{city} has many"

    return population


@tool(effect="pure")
async def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


async def test_its_own_tools_run_on_its_side(store):
    """A function tool of the agent is called by us and run by the agent, once per call."""
    ran = []
    async with serving(calling("population", "population"), store=store) as s, client_of(s) as client:
        agent = agent_of(s, client, tools=[clients_tool(ran)])
        result = await Runner.run(agent, "how many?", run_config=QUIET)
        assert result.final_output == "Oslo has many and Rome has many"
        assert sorted(ran) == ["Oslo", "Rome"]
        assert result.context_wrapper.usage.requests == 2
        assert result.context_wrapper.usage.total_tokens > 0
        assert [tool["function"]["name"] for tool in s.upstream.requests[0].body["tools"]] == ["population"]


async def test_a_streamed_run(store):
    """A streamed run yields raw events and items, and ends with the same output."""
    ran = []
    async with serving(calling("population"), store=store) as s, client_of(s) as client:
        result = Runner.run_streamed(
            agent_of(s, client, tools=[clients_tool(ran)]), "how many?", run_config=QUIET
        )
        raw, items = [], []
        async for event in result.stream_events():
            if event.type == "raw_response_event":
                raw.append(event.data.type)
            elif event.type == "run_item_stream_event":
                items.append(event.item.type)
        assert result.final_output == "Oslo has many"
        assert ran == ["Oslo"]
    assert raw.count("response.completed") == 2
    assert "response.function_call_arguments.delta" in raw
    assert "response.reasoning_text.delta" in raw
    assert {"tool_call_item", "tool_call_output_item", "message_output_item"} <= set(items)


async def test_an_output_type(store):
    """`output_type` becomes a JSON schema format, and the answer an instance."""

    class City(BaseModel):
        """A city."""

        name: str
        people: int

    answer = answer_script(json.dumps({"name": "Oslo", "people": 7}), varied=False)
    async with serving(answer, store=store) as s, client_of(s) as client:
        result = await Runner.run(agent_of(s, client, output_type=City), "which?", run_config=QUIET)
        assert result.final_output == City(name="Oslo", people=7)
        assert s.upstream.requests[0].body["response_format"]["type"] == "json_schema"


async def test_turns_are_chained_by_their_ids(store):
    """With `previous_response_id` only what is new is sent, and the model sees everything."""
    ran = []
    async with serving(calling("population"), store=store) as s, client_of(s) as client:
        agent = agent_of(s, client, tools=[clients_tool(ran)])
        first = await Runner.run(agent, "how many?", auto_previous_response_id=True, run_config=QUIET)
        second = await Runner.run(
            agent, "sure?", previous_response_id=first.last_response_id, run_config=QUIET
        )
        assert second.final_output == "Oslo has many"
        items = (await s.get(f"/v1/responses/{second.last_response_id}/input_items")).json["data"]
        assert [item["content"][0]["text"] for item in items] == ["sure?"]
    roles = [m["role"] for m in s.upstream.requests[-1].body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]


async def test_turns_are_chained_by_a_full_echo(store):
    """Without ids, and without storage, the agent sends its whole history back, and it is understood."""
    ran = []
    async with serving(calling("population"), store=store) as s, client_of(s) as client:
        settings = ModelSettings(store=False, response_include=["reasoning.encrypted_content"])
        agent = agent_of(s, client, tools=[clients_tool(ran)], model_settings=settings)
        first = await Runner.run(agent, "how many?", run_config=QUIET)
        again = [*first.to_input_list(), {"role": "user", "content": "sure?"}]
        second = await Runner.run(agent, again, run_config=QUIET)
        assert second.final_output == "Oslo has many"
        assert (await s.get("/v1/responses")).json["data"] == []
    roles = [m["role"] for m in s.upstream.requests[-1].body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_our_tools_are_seen_and_not_run_by_the_agent(store, streamed):
    """A tool of the server is an item of the run; the agent tries to run nothing for it."""
    async with serving(calling("weather"), store=store, tools=[weather]) as s, client_of(s) as client:
        agent = agent_of(s, client)
        if streamed:
            result = Runner.run_streamed(agent, "weather?", run_config=QUIET)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, "weather?", run_config=QUIET)
        assert "sunny in Oslo" in result.final_output
        kinds = [getattr(item.raw_item, "type", None) for item in result.new_items]
        assert kinds == ["reasoning", "message", "mcp_call", "message"]
        assert result.new_items[2].raw_item.output == "sunny in Oslo"
        follow_up = [*result.to_input_list(), {"role": "user", "content": "sure?"}]
        second = await Runner.run(agent, follow_up, run_config=QUIET)
        assert "sunny in Oslo" in second.final_output


async def test_tools_of_both_sides_in_one_turn(store):
    """Ours is run here, the agent's there, and the next turn has both results."""
    ran = []
    async with (
        serving(calling("weather", "population"), store=store, tools=[weather]) as s,
        client_of(s) as client,
    ):
        agent = agent_of(s, client, tools=[clients_tool(ran)])
        result = await Runner.run(agent, "both?", run_config=QUIET)
        assert result.final_output == "sunny in Oslo and Rome has many"
        assert ran == ["Rome"]


async def test_a_handoff(store):
    """A handoff is a function of the client like any other; the other agent goes on."""

    def script(request):
        offered = [tool["function"]["name"] for tool in request.body.get("tools") or ()]
        if "transfer_to_expert" in offered:
            return Turn(calls=(ScriptedCall("transfer_to_expert"),))
        return Turn(text="I am the expert.", varied=False)

    async with serving(script, store=store) as s, client_of(s) as client:
        expert = agent_of(s, client, name="expert", instructions="Know it all.")
        result = await Runner.run(agent_of(s, client, handoffs=[expert]), "help", run_config=QUIET)
        assert result.final_output == "I am the expert."
        assert result.last_agent.name == "expert"
