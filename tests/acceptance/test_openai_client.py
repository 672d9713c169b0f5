"""The official client over real sockets, as a user writes it; its warnings are errors here."""

import asyncio
import json
import logging
import time
from itertools import pairwise

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from antiphon import Limits, ServerOptions, tool
from antiphon.observe import metrics
from antiphon.testing import Fault, FaultKind, ScriptedCall, Turn, answer_script, turns_script
from antiphon.upstream.retry import RetryPolicy
from serving import judge_response, serving

pytestmark = pytest.mark.anyio

LOOK_UP = {
    "type": "function",
    "name": "look_up",
    "description": "Looks a capital up.",
    "parameters": {
        "type": "object",
        "properties": {"country": {"type": "string"}},
        "required": ["country"],
        "additionalProperties": False,
    },
    "strict": True,
}


@tool(effect="pure")
async def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'work.db'}"


@pytest.fixture(autouse=True)
def quiet(caplog, capfd):
    """Neither client nor server warns of anything, in logs or on the terminal."""
    yield
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
    out, err = capfd.readouterr()
    assert err == ""
    assert not [line for line in out.splitlines() if "[warning" in line or "[error" in line]


def client_of(s, **options):
    return AsyncOpenAI(base_url=s.url + "/v1", **{"api_key": "any", **options})


async def test_create(store):
    """`responses.create` gives a response with its text, its usage and a request id."""
    async with serving(answer_script("Hello."), store=store) as s, client_of(s) as client:
        response = await client.responses.create(model="fake", input="hi", instructions="Be brief.")
        assert response.status == "completed"
        assert response.output_text.endswith("Hello.")
        assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
        assert response._request_id.startswith("req_")
        assert response.error is None
        judge_response((await s.get(f"/v1/responses/{response.id}")).json)


async def test_create_as_a_stream(store):
    """Every event is known to the client, and the last one carries the response."""
    async with serving(answer_script("one two", reasoning="hm"), store=store) as s, client_of(s) as client:
        stream = await client.responses.create(model="fake", input="hi", stream=True)
        events = [event async for event in stream]
    assert [type(event).__name__ for event in events if type(event).__name__ == "BaseModel"] == []
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_the_stream_helper(store):
    """`responses.stream` builds snapshots from the deltas, and the final response is the server's."""
    script = turns_script(
        [
            Turn(
                text="Looking it up.",
                reasoning="Which one?",
                calls=(
                    ScriptedCall("look_up", {"country": "Peru"}),
                    ScriptedCall("look_up", {"country": "Chad"}),
                ),
                interleaved=True,
            )
        ]
    )
    async with serving(script, store=store) as s, client_of(s) as client:
        async with client.responses.stream(model="fake", input="hi", tools=[LOOK_UP]) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        snapshots = [event.snapshot for event in events if event.type == "response.output_text.delta"]
        assert snapshots[-1] == final.output_text
        assert all(later.startswith(earlier) for earlier, later in pairwise(snapshots))
        calls = [item for item in final.output if item.type == "function_call"]
        assert [json.loads(call.arguments) for call in calls] == [{"country": "Peru"}, {"country": "Chad"}]
        assert [call.parsed_arguments for call in calls] == [{"country": "Peru"}, {"country": "Chad"}]
        stored = await client.responses.retrieve(final.id)
        assert [item.id for item in stored.output] == [item.id for item in final.output]


async def test_the_stream_helper_sees_server_tools(store):
    """Our own calls pass through the helper as `mcp_call` items."""
    script = turns_script([Turn(calls=(ScriptedCall("weather", {"city": "Oslo"}),)), Turn(text="Sunny.")])
    async with (
        serving(script, store=store, tools=[weather]) as s,
        client_of(s) as client,
        client.responses.stream(model="fake", input="hi") as stream,
    ):
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert "response.mcp_call.completed" in kinds
    assert [item.type for item in final.output] == ["mcp_call", "message"]
    assert final.output[0].output == "sunny in Oslo"
    assert final.output[0].error is None


async def test_the_stream_helper_resumes(store):
    """`responses.stream(response_id=..., starting_after=N)` goes on where another reader stopped."""
    async with serving(answer_script("one two three"), store=store) as s, client_of(s) as client:
        async with client.responses.stream(model="fake", input="hi", background=True) as stream:
            events = [event async for event in stream]
        response_id = events[0].response.id
        async with client.responses.stream(response_id=response_id, starting_after=4) as stream:
            rest = [event async for event in stream]
            final = await stream.get_final_response()
    assert [event.sequence_number for event in rest] == [event.sequence_number for event in events[5:]]
    assert final.output_text == events[-1].response.output_text


class Capital(BaseModel):
    """A capital."""

    name: str
    people: int


async def test_parse_into_a_model(store):
    """`responses.parse` sends the schema of a pydantic class and gives back an instance."""
    answer = '{"name": "Lima", "people": 10}'
    async with serving(answer_script(answer, varied=False), store=store) as s, client_of(s) as client:
        parsed = await client.responses.parse(model="fake", input="capital of Peru?", text_format=Capital)
        assert parsed.output_parsed == Capital(name="Lima", people=10)
        assert parsed.text.format.type == "json_schema"
        async with client.responses.stream(model="fake", input="again", text_format=Capital) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_response()
        assert final.output_parsed == Capital(name="Lima", people=10)
    sent = s.upstream.requests[0].body["response_format"]
    assert sent["type"] == "json_schema"
    assert sent["json_schema"]["schema"]["required"] == ["name", "people"]


async def test_retrieve_and_replay(store):
    """`retrieve` gives the same response; with `stream` and a cursor its events from there on."""
    async with serving(store=store) as s, client_of(s) as client:
        made = await client.responses.create(model="fake", input="hi", stream=True)
        events = [event async for event in made]
        response_id = events[0].response.id
        again = await client.responses.retrieve(response_id)
        assert again == events[-1].response
        for cursor in (0, 3, len(events) - 2):
            replay = await client.responses.retrieve(response_id, stream=True, starting_after=cursor)
            assert [event async for event in replay] == events[cursor + 1 :]
        whole = await client.responses.retrieve(response_id, stream=True)
        assert [event async for event in whole] == events


async def test_cancel_delete_and_unknown_ids(store):
    """`cancel` ends what runs, `delete` hides it, and the client's own error classes tell what is missing."""
    async with serving(store=store) as s, client_of(s) as client:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        begun = await client.responses.create(model="fake", input="hi", background=True)
        await s.upstream.until_hanging()
        assert begun.status in {"queued", "in_progress"}
        cancelled = await client.responses.cancel(begun.id)
        assert cancelled.status == "cancelled"
        assert (await client.responses.cancel(begun.id)).status == "cancelled"
        await client.responses.delete(begun.id)
        for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                await call(begun.id)


async def test_background_polling(store):
    """A background response is polled until it has ended."""
    async with serving(answer_script("Done."), store=store, pace_s=0.02) as s, client_of(s) as client:
        response = await client.responses.create(model="fake", input="hi", background=True)
        async with asyncio.timeout(10):
            while response.status in {"queued", "in_progress"}:
                await asyncio.sleep(0.01)
                response = await client.responses.retrieve(response.id)
        assert response.status == "completed"
        assert response.output_text.endswith("Done.")


async def test_input_items_are_paged_by_the_client(store):
    """The client's pager walks over all input items, in both orders."""
    async with serving(store=store) as s, client_of(s) as client:
        made = await client.responses.create(
            model="fake", input=[{"role": "user", "content": f"n{n}"} for n in range(45)]
        )
        for order, expected in (("asc", range(45)), ("desc", range(44, -1, -1))):
            pages = client.responses.input_items.list(made.id, order=order, limit=20)
            assert [item.content[0].text async for item in pages] == [f"n{n}" for n in expected]


def capitals():
    """A model that asks for two look-ups and then quotes what came back."""

    def script(request):
        results = [m["content"] for m in request.messages if m["role"] == "tool"]
        if results:
            return Turn(text=" and ".join(results), varied=False)
        calls = tuple(ScriptedCall("look_up", {"country": name}) for name in ("Peru", "Chad"))
        return Turn(text="Looking.", calls=calls)

    return script


def outputs_of(response):
    answers = {"Peru": "Lima", "Chad": "N'Djamena"}
    return [
        {
            "type": "function_call_output",
            "call_id": item.call_id,
            "output": answers[json.loads(item.arguments)["country"]],
        }
        for item in response.output
        if item.type == "function_call"
    ]


async def test_functions_with_stored_state(store):
    """Calls are answered with `previous_response_id`, and the model sees them in order."""
    async with serving(capitals(), store=store) as s, client_of(s) as client:
        asked = await client.responses.create(model="fake", input="capitals?", tools=[LOOK_UP])
        done = await client.responses.create(
            model="fake", input=outputs_of(asked), previous_response_id=asked.id, tools=[LOOK_UP]
        )
        assert done.output_text == "Lima and N'Djamena"
        assert s.upstream.requests[1].extends(s.upstream.requests[0])


async def test_functions_with_a_full_echo(store):
    """With `store=False` the client sends everything back itself, items as it got them."""
    async with serving(capitals(), store=store) as s, client_of(s) as client:
        history = [{"role": "user", "content": "capitals?"}]
        asked = await client.responses.create(
            model="fake", input=history, tools=[LOOK_UP], store=False, include=["reasoning.encrypted_content"]
        )
        history += [item.model_dump() for item in asked.output]
        history += outputs_of(asked)
        done = await client.responses.create(model="fake", input=history, tools=[LOOK_UP], store=False)
        assert done.output_text == "Lima and N'Djamena"
        history += [item.model_dump(exclude_none=True) for item in done.output]
        history.append({"role": "user", "content": "thanks"})
        last = await client.responses.create(model="fake", input=history, tools=[LOOK_UP], store=False)
        assert last.status == "completed"
    assert [m["role"] for m in s.upstream.requests[-1].body["messages"]] == [
        "user", "assistant", "tool", "tool", "assistant", "user",
    ]  # fmt: skip


async def test_server_calls_are_echoed_and_never_run_again(store):
    """`mcp_call` items that a client sends back are history: the tool is not run for them."""
    ran = []

    @tool
    async def book(what: str) -> str:
        """Books."""
        ran.append(what)
        return f"booked {what}"

    script = turns_script([Turn(calls=(ScriptedCall("book", {"what": "hut"}),)), Turn(text="Booked.")])

    def after_first(request):
        return script(request) if len(request.messages) < 4 else Turn(text="Yes.")

    async with serving(after_first, store=store, tools=[book]) as s, client_of(s) as client:
        first = await client.responses.create(model="fake", input="book it", store=False)
        echoed = [{"role": "user", "content": "book it"}, *(item.model_dump() for item in first.output)]
        second = await client.responses.create(
            model="fake", input=[*echoed, {"role": "user", "content": "did you?"}], store=False
        )
        assert second.output_text.endswith("Yes.")
    assert ran == ["hut"]
    told = s.upstream.requests[-1].body["messages"]
    assert [m["content"] for m in told if m["role"] == "tool"] == ["booked hut"]


async def test_errors_have_the_clients_classes():
    """Each refusal becomes the client's own exception, with message, code and param, and no retry storm."""
    async with serving(
        options=ServerOptions(api_keys=("right",)), client={"retry": RetryPolicy(attempts=1)}
    ) as s:
        async with client_of(s, api_key="wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.responses.create(model="fake", input="hi")
        async with client_of(s, api_key="right") as client:
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.create(model="fake", input="hi", temperature=9)
            assert refused.value.param == "temperature"
            assert refused.value.type == "invalid_request_error"
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.create(model="fake", input="hi", previous_response_id="resp_none")
            assert refused.value.code == "previous_response_not_found"
            s.upstream.inject(*[Fault(kind=FaultKind.STATUS, status=500)] * 9)
            with pytest.raises(openai.InternalServerError) as failed:
                await client.responses.create(model="fake", input="hi")
            assert failed.value.status_code == 502
            assert len(s.upstream.requests) == 1, "x-should-retry: false is obeyed"
            s.upstream.inject()


async def test_an_error_in_the_stream_is_raised_by_the_client():
    """The `error` event of a failed stream is an exception for those who iterate."""
    async with serving(client={"retry": RetryPolicy(attempts=1)}) as s, client_of(s) as client:
        s.upstream.inject(Fault(kind=FaultKind.STATUS, status=500))
        stream = await client.responses.create(model="fake", input="hi", stream=True)
        with pytest.raises(openai.APIError) as failed:
            async for _ in stream:
                pass
        assert failed.value.code == "upstream_error"


async def test_a_busy_server_is_waited_for():
    """The client honours Retry-After of a 429 by itself and succeeds once there is room."""
    async with serving(limits=Limits(running=1, waiting=0)) as s, client_of(s) as client:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        first = asyncio.ensure_future(client.responses.create(model="fake", input="first"))
        await s.upstream.until_hanging()
        began, before = time.monotonic(), metrics.REJECTED._value.get()
        second = asyncio.ensure_future(client.responses.create(model="fake", input="second"))
        async with asyncio.timeout(5):
            while metrics.REJECTED._value.get() == before:
                await asyncio.sleep(0.01)
        s.upstream.release()
        assert (await first).status == "completed"
        assert (await second).status == "completed"
        assert time.monotonic() - began < 10


async def test_models():
    """The model list and one model."""
    async with serving() as s, client_of(s) as client:
        assert [model.id async for model in client.models.list()] == ["fake"]
        assert (await client.models.retrieve("fake")).id == "fake"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("none")


async def test_raw_and_streaming_response_wrappers():
    """Headers are there for those who use the raw wrapper."""
    async with serving() as s, client_of(s) as client:
        raw = await client.responses.with_raw_response.create(model="fake", input="hi")
        assert raw.headers["x-request-id"]
        assert raw.parse().status == "completed"
