"""The rehearsal model, over real sockets, by raw HTTP and by our own client."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import jsonschema
import pytest

from antiphon.domain.ids import made_id
from antiphon.domain.inference import CallDelta, InferenceFinished, InferenceRequest, TextDelta
from antiphon.upstream.chat import ChatCompletionsClient
from antiphon.upstream.protocol import UpstreamTarget
from antiphon.upstream.rehearsal import RehearsalServer
from antiphon.upstream.rehearsal.arguments import calls_named_in
from antiphon.upstream.rehearsal.fitting import fitting_value

pytestmark = pytest.mark.anyio


def tool(name: str, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


WEATHER = tool("weather", ("city",), city={"type": "string"}, days={"type": "integer", "minimum": 1})
CLOCK = tool("clock")
MAIL = tool("send-mail", ("to", "text"), to={"type": "string", "format": "email"}, text={"type": "string"})
TOOLS = [WEATHER, CLOCK, MAIL]


class Talk:
    """A raw HTTP client of one rehearsal server."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def post(self, body: Any) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(f"{self.url}/chat/completions", data=data) as response:
            return response.status, await response.json()

    async def ask(self, *messages: dict[str, Any] | str, **fields: Any) -> dict[str, Any]:
        """The choice and the usage of a whole answer."""
        said = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
        status, answer = await self.post({"model": "rehearsal", "messages": said, **fields})
        assert status == 200, answer
        return {**answer["choices"][0], "usage": answer["usage"]}

    async def calls(self, *messages: dict[str, Any] | str, **fields: Any) -> list[tuple[str, Any]]:
        """The calls of an answer, arguments decoded."""
        choice = await self.ask(*messages, **{"tools": TOOLS, **fields})
        calls = choice["message"].get("tool_calls", [])
        assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
        assert len({call["id"] for call in calls}) == len(calls)
        return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]

    async def text(self, *messages: dict[str, Any] | str, **fields: Any) -> str:
        content = (await self.ask(*messages, **fields))["message"]["content"]
        assert isinstance(content, str)
        return content


@asynccontextmanager
async def talking(pace_s: float = 0.0) -> AsyncIterator[Talk]:
    async with RehearsalServer(pace_s) as server, aiohttp.ClientSession() as session, asyncio.timeout(30):
        yield Talk(server.url, session)


async def test_it_says_what_it_is() -> None:
    """Answers, and the list of models, say that this is no language model."""
    async with talking() as talk:
        assert (await talk.text("hello there")).startswith("[rehearsal] ")
        async with talk.session.get(f"{talk.url}/models") as response:
            [model] = (await response.json())["data"]
        assert model["id"] == "rehearsal"
        assert "not a language model" in model["owned_by"]
        async with talk.session.get(talk.url.removesuffix("/v1") + "/health") as response:
            assert response.status == 200


async def test_it_talks_about_the_prompt_and_the_turn() -> None:
    """The prompt is quoted, and the number of the turn shows that history came along."""
    async with talking() as talk:
        text = await talk.text("first", {"role": "assistant", "content": "aha"}, "and the second")
    assert "turn 2" in text
    assert '"and the second"' in text


async def test_no_two_answers_are_equal() -> None:
    """The same request twice has other words, so that a repeated attempt shows."""
    async with talking() as talk:
        assert len({await talk.text("hello") for _ in range(20)}) == 20


async def test_tools_named_in_the_prompt_are_called() -> None:
    """All of them at once, in the prompt's order; names inside other words do not count."""
    async with talking() as talk:
        assert await talk.calls('use the clock, then weather {"city": "Oslo"}') == [
            ("clock", {}),
            ("weather", {"city": "Oslo"}),
        ]
        assert await talk.calls("clockwork and weather-proof and my_clock") == []
        assert await talk.calls('weather {"city": "clock"}') == [("weather", {"city": "clock"})]
        assert [name for name, _ in await talk.calls("please send-mail")] == ["send-mail"]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ('weather {"city": "Oslo", "days": 2}', [{"city": "Oslo", "days": 2}]),
        ('weather: {"city": 7}', [{"city": 7}]),
        ('weather(city="New York", days=3)', [{"city": "New York", "days": 3}]),
        ("weather(city='Łódź')", [{"city": "Łódź"}]),
        ("weather in city: Oslo days=3.", [{"city": "Oslo", "days": 3}]),
        ("for city=Oslo ask weather", [{"city": "Oslo"}]),
        ("weather", [{"city": "rehearsal"}]),
        ('weather {"city": "A"} weather {"city": "B"}', [{"city": "A"}, {"city": "B"}]),
        ("weather(city=A) and weather(city=B), weather is fine", [{"city": "A"}, {"city": "B"}]),
        ("weather {broken", [{"city": "rehearsal"}]),
        ('weather {"city": "ask weather"}', [{"city": "ask weather"}]),
    ],
)
def test_arguments_in_the_prompt(prompt: str, expected: list[Any]) -> None:
    """JSON as it is, calls as in a program, pairs among the words; the rest is made to fit."""
    calls = calls_named_in(prompt, [WEATHER["function"]])
    assert [json.loads(call.arguments) for call in calls] == expected


def test_a_text_parameter_gets_the_words() -> None:
    """What asks for a text gets what the prompt says behind the tool's name."""
    [call] = calls_named_in("send-mail to=a@b.c saying hello", [MAIL["function"]])
    assert json.loads(call.arguments) == {"to": "a@b.c", "text": "to=a@b.c saying hello"}


async def test_tool_choice_is_respected() -> None:
    """None, required, one in particular, and one at a time."""
    async with talking() as talk:
        assert await talk.calls("clock", tool_choice="none") == []
        assert await talk.calls("hello", tool_choice="required") == [("weather", {"city": "rehearsal"})]
        chosen = {"type": "function", "function": {"name": "clock"}}
        assert await talk.calls("ask weather", tool_choice=chosen) == [("clock", {})]
        assert await talk.calls("clock and weather", parallel_tool_calls=False) == [("clock", {})]


def called(*names: str) -> dict[str, Any]:
    calls = [{"id": f"c_{n}", "type": "function", "function": {"name": n, "arguments": "{}"}} for n in names]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(name: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"c_{name}", "content": content}


async def test_results_are_quoted() -> None:
    """After tools it answers from their results, and calls nothing again."""
    turn = (
        "weather and clock",
        called("weather", "clock"),
        result("weather", "12 °C"),
        result("clock", "noon"),
    )
    async with talking() as talk:
        text = await talk.text(*turn, tools=TOOLS)
        assert "weather says: 12 °C" in text
        assert "clock says: noon" in text
        assert "12 °C" not in await talk.text(*turn, {"role": "assistant", "content": text}, "thanks")


async def test_answers_fit_the_schema_that_was_asked_for() -> None:
    """A JSON schema for the answer is followed, and the words still differ."""
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string"}, "count": {"type": "integer", "minimum": 3}},
        "required": ["title", "count"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    async with talking() as talk:
        texts = {await talk.text("fill it", response_format=wanted) for _ in range(2)}
        assert json.loads(await talk.text("fill it", response_format={"type": "json_object"}))
    assert len(texts) == 2
    for text in texts:
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "string", "minLength": 40},
        {"type": "string", "maxLength": 3},
        {"type": "string", "format": "date-time"},
        {"type": ["null", "string"], "enum": ["b", "a"]},
        {"const": 7},
        {"type": "integer", "minimum": 5, "multipleOf": 4},
        {"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 7},
        {"type": "integer", "maximum": -3},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "number", "minimum": 2.5},
        {"type": "number", "exclusiveMaximum": 0},
        {"type": "boolean"},
        {"type": "null"},
        {"type": ["null", "integer"]},
        {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 2, "uniqueItems": True},
        {"type": "array", "items": {"type": "integer"}, "minItems": 3, "uniqueItems": True},
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
        {"type": "array"},
        {
            "type": "object",
            "properties": {
                "a": {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]},
                "c": {"type": "array", "items": {"type": "object", "required": ["d"]}},
            },
            "required": ["a", "c"],
        },
        {"$ref": "#/$defs/x", "$defs": {"x": {"type": "integer", "minimum": 9}}},
        {"anyOf": [{"type": "null"}, {"type": "number", "minimum": 3}]},
        {"oneOf": [{"$ref": "#/$defs/x"}, {"type": "string"}], "$defs": {"x": {"type": "object"}}},
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"b": {"type": "string"}}, "required": ["b"]},
            ]
        },
        {
            "$ref": "#/$defs/node",
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {
                        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                        "all": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                    },
                    "required": ["next", "all"],
                }
            },
        },
        {},
        True,
    ],
)
def test_values_fit_schemas(schema: Any) -> None:
    """Whatever a schema asks for, what is made for it is valid."""
    jsonschema.Draft202012Validator(schema).validate(fitting_value(schema))


async def test_stream_and_whole_are_the_same_protocol() -> None:
    """Our own client reads both: words one by one, calls in pieces, usage, and the end."""
    params: dict[str, Any] = {"tools": [t["function"] | {"type": "function"} for t in TOOLS]}
    async with (
        RehearsalServer(0) as server,
        ChatCompletionsClient(UpstreamTarget(server.url, "/chat/completions")) as client,
    ):
        assert await client.models() == ["rehearsal"]
        for stream in (True, False):
            asked = [{"role": "user", "content": "hello [words=50]"}]
            said = [
                e async for e in client.call(InferenceRequest(model="rehearsal", input=asked, stream=stream))
            ]
            text = "".join(e.text for e in said if isinstance(e, TextDelta))
            assert len(text.split()) == 50
            assert (len(said) > 50) is stream
            finished = said[-1]
            assert isinstance(finished, InferenceFinished)
            assert finished.usage is not None
            assert (finished.usage.input_tokens, finished.usage.output_tokens) == (2, 50)
            asked = [{"role": "user", "content": 'weather {"city": "a long name of a town"} clock'}]
            request = InferenceRequest(model="rehearsal", input=asked, stream=stream, **params)
            events = [e async for e in client.call(request)]
            arguments = ["", ""]
            for event in events:
                if isinstance(event, CallDelta):
                    arguments[event.index] += event.arguments
            assert [json.loads(text) for text in arguments] == [{"city": "a long name of a town"}, {}]
            assert events[-1].finish_reason == "tool_calls"


async def test_a_turn_with_tools_goes_round() -> None:
    """What our client makes of calls and results is what a strict server accepts; the next turn too."""
    items: list[dict[str, Any]] = [{"role": "user", "content": 'weather {"city": "Oslo"} and clock'}]
    stem = "a" * 24 + "00"
    for index, (name, output) in enumerate([("weather", "12 °C"), ("clock", "noon")]):
        item_id = made_id("mcp", stem, index)
        items.append({"type": "mcp_call", "id": item_id, "name": name, "arguments": "{}", "output": output})
    async with (
        RehearsalServer(0) as server,
        ChatCompletionsClient(UpstreamTarget(server.url, "/chat/completions")) as client,
    ):

        async def said() -> str:
            request = InferenceRequest(model="rehearsal", input=items, instructions="be good")
            return "".join([e.text async for e in client.call(request) if isinstance(e, TextDelta)])

        first = await said()
        assert "weather says: 12 °C | clock says: noon" in first
        items.append({"role": "assistant", "content": first})
        items.append({"role": "user", "content": "thanks"})
        assert "turn 2" in await said()


async def test_pace_can_be_set_in_the_prompt() -> None:
    """`[pace=…]` slows down the words: the first is there long before the last."""
    async with talking(pace_s=0) as talk:
        body = {
            "model": "rehearsal",
            "stream": True,
            "messages": [{"role": "user", "content": "hi [pace=0.01]"}],
        }
        started = asyncio.get_running_loop().time()
        async with talk.session.post(f"{talk.url}/chat/completions", json=body) as response:
            lines = [line async for line in response.content if line.startswith(b"data: {")]
        took = asyncio.get_running_loop().time() - started
    words = sum(1 for line in lines if json.loads(line[6:])["choices"][0]["delta"].get("content"))
    assert words > 10
    assert took >= 0.01 * words


async def test_the_limit_on_words() -> None:
    """`max_tokens` cuts the answer, and the finish reason says so."""
    async with talking() as talk:
        choice = await talk.ask("hello", max_tokens=3)
    assert len(choice["message"]["content"].split()) == 3
    assert choice["finish_reason"] == "length"
    assert choice["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{not json", 400, None),
        (b"[]", 400, None),
        ({"messages": [{"role": "user", "content": "x"}]}, 400, "model"),
        ({"model": "gpt-9", "messages": [{"role": "user", "content": "x"}]}, 404, "model"),
        ({"model": "rehearsal"}, 400, "messages"),
        ({"model": "rehearsal", "messages": []}, 400, "messages"),
        ({"model": "rehearsal", "messages": [{"role": "nobody"}]}, 400, "messages[0].role"),
        (
            {"model": "rehearsal", "messages": [{"role": "assistant", "content": None}]},
            400,
            "messages[0].content",
        ),
        ({"model": "rehearsal", "messages": [result("f", "x")]}, 400, "messages[0]"),
        ({"model": "rehearsal", "messages": [called("f")]}, 400, "messages"),
        (
            {"model": "rehearsal", "messages": [called("f"), {"role": "user", "content": "x"}]},
            400,
            "messages[1]",
        ),
        (
            {"model": "rehearsal", "messages": [{"role": "user", "content": "x"}], "tool_choice": "required"},
            400,
            "tool_choice",
        ),
        (
            {"model": "rehearsal", "messages": [{"role": "user", "content": "x"}], "tools": [{}]},
            400,
            "tools[0]",
        ),
    ],
)
async def test_refusals_are_those_of_a_real_server(body: Any, status: int, param: str | None) -> None:
    """What real servers refuse is refused, in the form that clients know."""
    async with talking() as talk:
        answered, answer = await talk.post(body)
    assert answered == status
    assert answer["error"].keys() == {"message", "type", "param", "code"}
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["param"] == param
    assert (answer["error"]["code"] == "model_not_found") is (status == 404)


async def test_the_server_ends_with_its_block_and_leaves_signals_alone() -> None:
    """Nothing listens afterwards, and the process handles its signals as before."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    async with RehearsalServer() as server:
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        url = server.url
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"{url}/models")


async def test_the_end_of_the_block_cuts_answers_off(caplog: pytest.LogCaptureFixture) -> None:
    """A stream in progress does not hold the server up, and nothing is complained about."""
    body = {"model": "rehearsal", "stream": True, "messages": [{"role": "user", "content": "hi [pace=60]"}]}
    async with aiohttp.ClientSession() as session, asyncio.timeout(10):
        async with RehearsalServer() as server:
            response = await session.post(f"{server.url}/chat/completions", json=body)
            assert await response.content.readline()
            leaving = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - leaving < 0.9
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    assert caplog.records == []


async def test_two_servers_at_once() -> None:
    """Each has its own port; a port that is taken is said so."""
    async with RehearsalServer() as one, RehearsalServer() as two:
        assert one.url != two.url
        port = int(one.url.split(":")[2].split("/")[0])
        with pytest.raises(OSError):
            await RehearsalServer(port=port).__aenter__()
