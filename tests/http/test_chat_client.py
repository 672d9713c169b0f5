"""The chat client against servers on real sockets, most of which misbehave."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import aiohttp
import pytest

from antiphon.domain.errors import (
    InferenceError,
    UpstreamBrokenError,
    UpstreamRefusedError,
    UpstreamTimeoutError,
    UpstreamUnreachableError,
)
from antiphon.domain.inference import (
    CallDelta,
    InferenceEvent,
    InferenceFinished,
    InferenceRequest,
    ReasoningDelta,
    TextDelta,
)
from antiphon.upstream.chat import ChatCompletionsClient, Timeouts, exchange
from antiphon.upstream.protocol import UpstreamTarget
from antiphon.upstream.retry import RetryPolicy

pytestmark = pytest.mark.anyio

Behaviour = Callable[["Visit"], Awaitable[None]]


class Visit:
    """One request as a raw server sees it, and the wire to answer on."""

    def __init__(self, number: int, head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.head = head
        self.body = body
        self.writer = writer
        self.gone = asyncio.Event()

    def header(self, name: str) -> str | None:
        """The value of a request header."""
        for line in self.head.split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name.lower():
                return value.strip()
        return None

    async def send(self, data: bytes) -> None:
        """Put bytes on the wire, as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def answer(
        self, status: int, body: bytes, *, kind: str = "application/json", headers: str = ""
    ) -> None:
        """A complete answer."""
        await self.send(
            f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode()
            + body
        )

    async def begin_stream(self) -> None:
        """The head of a chunked event stream."""
        await self.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )

    async def piece(self, data: bytes) -> None:
        """One chunk of a stream."""
        await self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def end_stream(self) -> None:
        """The last chunk."""
        await self.send(b"0\r\n\r\n")

    async def stream(self, *pieces: bytes) -> None:
        """A complete stream of these pieces."""
        await self.begin_stream()
        for piece in pieces:
            await self.piece(piece)
        await self.end_stream()


class RawServer:
    """A server that reads requests properly and answers as badly as it is told."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.visits: list[Visit] = []
        self.connections = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        visit: Visit | None = None
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    (
                        int(x.split(":")[1])
                        for x in head.lower().split("\r\n")
                        if x.startswith("content-length:")
                    ),
                    0,
                )
                visit = Visit(len(self.visits), head, await reader.readexactly(length), writer)
                self.visits.append(visit)
                watcher = asyncio.ensure_future(reader.read(1))
                acting = asyncio.ensure_future(self.behaviour(visit))
                await asyncio.wait({watcher, acting}, return_when=asyncio.FIRST_COMPLETED)
                if watcher.done() and not acting.done():
                    visit.gone.set()
                    acting.cancel()
                watcher.cancel()
                await asyncio.gather(watcher, acting, return_exceptions=True)
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            if visit is not None:
                visit.gone.set()
        finally:
            writer.close()


@asynccontextmanager
async def raw_server(behaviour: Behaviour) -> AsyncIterator[RawServer]:
    raw = RawServer(behaviour)
    server = await asyncio.start_server(raw.serve, "127.0.0.1", 0)
    raw.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield raw
    finally:
        server.close()


class Waits:
    """Takes the place of sleeping between attempts, and keeps how long it would have been."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)

    def policy(self, **fields: object) -> RetryPolicy:
        return RetryPolicy(sleep=self.sleep, random=lambda: 0.5, **fields)


@asynccontextmanager
async def client_of(
    behaviour: Behaviour, *, timeouts: Timeouts | None = None, retry: RetryPolicy | None = None
) -> AsyncIterator[tuple[ChatCompletionsClient, RawServer]]:
    async with (
        raw_server(behaviour) as server,
        ChatCompletionsClient(
            UpstreamTarget(server.url),
            timeouts=timeouts or Timeouts(),
            retry=retry or Waits().policy(attempts=1),
        ) as client,
    ):
        yield client, server


def asking(*, stream: bool = True, **fields: object) -> InferenceRequest:
    return InferenceRequest(model="m", input=[{"role": "user", "content": "hi"}], stream=stream, **fields)


def chunk(delta: dict | None = None, finish: str | None = None, **fields: object) -> bytes:
    body = {
        "object": "chat.completion.chunk",
        "model": "m-1",
        "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}],
        **fields,
    }
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 5},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
GOOD = (chunk({"content": "He"}), chunk({"content": "llo"}), chunk(finish="stop"), DONE)


async def all_of(client: ChatCompletionsClient, request: InferenceRequest) -> list[InferenceEvent]:
    async with asyncio.timeout(10):
        return [event async for event in client.call(request)]


async def failure_of(client: ChatCompletionsClient, request: InferenceRequest) -> InferenceError:
    with pytest.raises(InferenceError) as caught:
        await all_of(client, request)
    return caught.value


async def failure_after_first_event(
    rest: Callable[[Visit], Awaitable[None]], *, timeouts: Timeouts | None = None
) -> tuple[InferenceError, RawServer]:
    """What becomes of an answer whose first event was read before the server does the rest."""
    seen = asyncio.Event()

    async def behave(visit: Visit) -> None:
        await visit.begin_stream()
        await visit.piece(GOOD[0])
        await seen.wait()
        await rest(visit)

    async with client_of(behave, timeouts=timeouts, retry=Waits().policy()) as (client, server):
        events = client.call(asking())
        assert await anext(events) == TextDelta("He")
        seen.set()
        with pytest.raises(InferenceError) as caught:
            async with asyncio.timeout(10):
                await anext(events)
    return caught.value, server


def text_of(events: list[InferenceEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def test_streams_text_and_ends_with_usage() -> None:
    """Deltas come one by one; the usage chunk after the finish reason is in the last event."""

    async def behave(visit: Visit) -> None:
        await visit.stream(
            chunk({"role": "assistant", "content": ""}),
            chunk({"reasoning_content": "hm"}),
            *GOOD[:3],
            b'data: {"choices": [], "usage": ' + json.dumps(USAGE).encode() + b"}\n\n",
            DONE,
        )

    async with client_of(behave) as (client, _):
        events = await all_of(client, asking())
    assert events[:3] == [ReasoningDelta("hm"), TextDelta("He"), TextDelta("llo")]
    finished = events[-1]
    assert isinstance(finished, InferenceFinished)
    assert (finished.finish_reason, finished.model) == ("stop", "m-1")
    assert finished.usage is not None
    assert finished.usage.input_tokens == 11
    assert finished.usage.input_tokens_details.cached_tokens == 5
    assert finished.usage.output_tokens_details.reasoning_tokens == 3


async def test_whole_answer_gives_the_same_events() -> None:
    """Without streaming each part comes whole, calls and usage included."""

    async def behave(visit: Visit) -> None:
        message = {
            "role": "assistant",
            "content": "Hello",
            "reasoning": "hm",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "b", "type": "function", "function": {"name": "g", "arguments": '{"x":1}'}},
            ],
        }
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        await visit.answer(200, json.dumps({"model": "m-1", "choices": [choice], "usage": USAGE}).encode())

    async with client_of(behave) as (client, server):
        events = await all_of(client, asking(stream=False))
    assert events[:-1] == [
        ReasoningDelta("hm"),
        TextDelta("Hello"),
        CallDelta(0, "f", "{}"),
        CallDelta(1, "g", '{"x":1}'),
    ]
    assert events[-1].finish_reason == "tool_calls"
    assert json.loads(server.visits[0].body)["stream"] is False


async def test_headers_carry_key_and_step() -> None:
    """The API key and the step's name are sent; an empty key sends no Authorization header."""

    async def behave(visit: Visit) -> None:
        await visit.stream(*GOOD)

    async with raw_server(behave) as server:
        for key in ("secret", "", None):
            async with ChatCompletionsClient(UpstreamTarget(server.url, api_key=key)) as client:
                await all_of(client, asking(idempotency_key="step_1"))
    assert [visit.header("authorization") for visit in server.visits] == ["Bearer secret", None, None]
    assert {visit.header("idempotency-key") for visit in server.visits} == {"step_1"}
    assert {visit.header("accept-encoding") for visit in server.visits} == {"identity"}


async def test_connections_are_kept() -> None:
    """Calls one after another use one connection, streamed or not."""

    async def behave(visit: Visit) -> None:
        if json.loads(visit.body)["stream"]:
            await visit.stream(*GOOD)
        else:
            body = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}
            await visit.answer(200, json.dumps(body).encode())

    async with client_of(behave) as (client, server):
        for stream in (True, False, True, True):
            await all_of(client, asking(stream=stream))
    assert (len(server.visits), server.connections) == (4, 1)


async def test_a_given_session_stays_open() -> None:
    """A session that the caller brought is used, and not closed."""

    async def behave(visit: Visit) -> None:
        await visit.stream(*GOOD)

    async with raw_server(behave) as server, aiohttp.ClientSession() as session:
        client = ChatCompletionsClient(UpstreamTarget(server.url), session=session)
        assert text_of(await all_of(client, asking())) == "Hello"
        await client.close()
        assert not session.closed


async def test_a_closed_client_refuses() -> None:
    """After `close` a call fails at once, and opens no new session."""

    async def behave(visit: Visit) -> None:
        await visit.stream(*GOOD)

    async with client_of(behave) as (client, server):
        await client.close()
        error = await failure_of(client, asking())
    assert isinstance(error, UpstreamUnreachableError)
    assert not error.retryable
    assert server.visits == []


async def test_every_byte_border() -> None:
    """Split anywhere, in the middle of characters too, the text is the same."""
    wire = chunk({"content": "zażółć 🦔 "}) + chunk({"content": "gęślą"}) + chunk(finish="stop") + DONE

    async def behave(visit: Visit) -> None:
        await visit.begin_stream()
        for at in range(len(wire)):
            await visit.piece(wire[at : at + 1])
        await visit.end_stream()

    async with client_of(behave) as (client, _):
        assert text_of(await all_of(client, asking())) == "zażółć 🦔 gęślą"


async def test_connection_refused() -> None:
    """Nobody listening: unreachable, tried as often as the policy says."""
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    waits = Waits()
    async with ChatCompletionsClient(
        UpstreamTarget(f"http://127.0.0.1:{port}"), retry=waits.policy()
    ) as client:
        error = await failure_of(client, asking())
    assert isinstance(error, UpstreamUnreachableError)
    assert error.retryable
    assert not error.torn
    assert waits.seconds == [0.125, 0.25]


async def test_connection_closed_without_a_word() -> None:
    """A server that hangs up before any header cannot be reached."""

    async def behave(visit: Visit) -> None:
        visit.writer.close()

    async with client_of(behave) as (client, _):
        assert isinstance(await failure_of(client, asking()), UpstreamUnreachableError)


async def test_something_else_answers() -> None:
    """A port where no HTTP is spoken gives what is not an answer."""

    async def behave(visit: Visit) -> None:
        await visit.send(b"SSH-2.0-OpenSSH_9.2\r\n")

    async with client_of(behave) as (client, _):
        assert isinstance(await failure_of(client, asking()), UpstreamBrokenError)


async def test_no_secure_connection() -> None:
    """An https address of a server that speaks plain HTTP is not tried again."""
    visitors = 0

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal visitors
        visitors += 1
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    target = UpstreamTarget(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server, ChatCompletionsClient(target, retry=Waits().policy()) as client:
        error = await failure_of(client, asking())
    assert isinstance(error, UpstreamUnreachableError)
    assert not error.retryable
    assert visitors == 1


async def test_an_address_that_is_none() -> None:
    """An unusable URL is said so, and not tried again."""
    async with ChatCompletionsClient(UpstreamTarget("no-url")) as client:
        error = await failure_of(client, asking())
    assert isinstance(error, UpstreamUnreachableError)
    assert not error.retryable


async def hang(_visit: Visit) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("stream", [True, False])
async def test_silence_before_headers(stream: bool) -> None:
    """A server that takes the request and says nothing is a timeout."""
    async with client_of(hang, timeouts=Timeouts(first_byte_s=0.05)) as (client, server):
        error = await failure_of(client, asking(stream=stream))
    assert isinstance(error, UpstreamTimeoutError)
    assert error.http_status == 504
    assert not error.torn
    assert len(server.visits) == 1


async def test_silence_after_headers() -> None:
    """Headers alone are not an answer: the first byte is still awaited within its limit."""

    async def behave(visit: Visit) -> None:
        await visit.begin_stream()
        await hang(visit)

    async with client_of(behave, timeouts=Timeouts(first_byte_s=0.05)) as (client, _):
        error = await failure_of(client, asking())
    assert isinstance(error, UpstreamTimeoutError)
    assert "nothing within 0.05 s" in error.message


async def test_silence_in_mid_stream() -> None:
    """A stream that stops is a timeout, torn, and never retried."""
    error, server = await failure_after_first_event(hang, timeouts=Timeouts(idle_s=0.05))
    assert isinstance(error, UpstreamTimeoutError)
    assert error.torn
    assert len(server.visits) == 1


async def test_the_readers_time_is_not_silence() -> None:
    """An upstream that waits for a slow reader is not taken for a silent one."""
    resumed = asyncio.Event()

    async def behave(visit: Visit) -> None:
        await visit.begin_stream()
        await visit.piece(GOOD[0])
        await resumed.wait()
        for piece in GOOD[1:]:
            await visit.piece(piece)
        await visit.end_stream()

    async with client_of(behave, timeouts=Timeouts(idle_s=0.3)) as (client, _):
        events = client.call(asking())
        assert await anext(events) == TextDelta("He")
        await asyncio.sleep(0.6)  # the reader's own work
        resumed.set()
        assert text_of([event async for event in events]) == "llo"


async def test_a_whole_answer_is_given_longer() -> None:
    """Without streaming the first byte comes with the last: it may take five times as long."""

    async def behave(visit: Visit) -> None:
        await asyncio.sleep(0.3)  # the model's work
        body = {"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}
        await visit.answer(200, json.dumps(body).encode())

    async with client_of(behave, timeouts=Timeouts(first_byte_s=0.2)) as (client, _):
        assert text_of(await all_of(client, asking(stream=False))) == "Hello"


async def test_total_limit_holds_for_endless_answers() -> None:
    """A server that never stops is cut off at the total limit, however lively."""

    async def behave(visit: Visit) -> None:
        await visit.begin_stream()
        while True:
            await visit.piece(GOOD[0])
            await asyncio.sleep(0.005)

    async with client_of(behave, timeouts=Timeouts(total_s=0.1)) as (client, _):
        error = await failure_of(client, asking())
    assert isinstance(error, UpstreamTimeoutError)
    assert error.torn


async def test_connection_cut_in_mid_stream() -> None:
    """A cut stream is broken and torn, and never retried behind the reader's back."""

    async def cut(visit: Visit) -> None:
        visit.writer.close()

    error, server = await failure_after_first_event(cut)
    assert isinstance(error, UpstreamBrokenError)
    assert error.torn
    assert error.retryable
    assert len(server.visits) == 1


async def test_stream_that_ends_too_early() -> None:
    """A stream that ends properly but without finish reason and `[DONE]` is not an answer."""
    error, _ = await failure_after_first_event(Visit.end_stream)
    assert isinstance(error, UpstreamBrokenError)
    assert error.torn


@pytest.mark.parametrize("ending", ["proper", "cut", "hang", "garbage"])
async def test_finish_reason_without_done_is_enough(ending: str) -> None:
    """Once the model has ended its answer, nothing that follows can take it back."""

    async def behave(visit: Visit) -> None:
        await visit.begin_stream()
        for piece in GOOD[:3]:
            await visit.piece(piece)
        match ending:
            case "proper":
                await visit.end_stream()
            case "cut":
                visit.writer.close()
            case "hang":
                await hang(visit)
            case "garbage":
                await visit.piece(b"data: {half")
                await visit.end_stream()

    async with client_of(behave, timeouts=Timeouts(idle_s=0.05)) as (client, _):
        events = await all_of(client, asking())
    assert text_of(events) == "Hello"
    assert events[-1].finish_reason == "stop"


async def test_after_the_finish_reason_nobody_waits_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that forgets `[DONE]` and keeps the line open does not hold up the answer."""
    monkeypatch.setattr(exchange, "_SETTLE_S", 0.05)

    async def behave(visit: Visit) -> None:
        await visit.begin_stream()
        for piece in GOOD[:3]:
            await visit.piece(piece)
        await hang(visit)

    async with client_of(behave, timeouts=Timeouts(idle_s=60)) as (client, _):
        assert text_of(await all_of(client, asking())) == "Hello"


async def test_the_end_of_the_body_is_awaited() -> None:
    """A connection is kept also when the body's end comes a little after `[DONE]`."""
    told = asyncio.Event()

    async def behave(visit: Visit) -> None:
        await visit.begin_stream()
        await visit.piece(b"".join(GOOD))
        await told.wait()
        await visit.end_stream()

    async with client_of(behave) as (client, server):
        for _ in range(2):
            told.clear()
            async for event in client.call(asking()):
                if isinstance(event, InferenceFinished):
                    told.set()
        assert server.connections == 1


async def test_endless_bodies_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server can fill our memory."""
    monkeypatch.setattr(exchange, "_MAX_BODY_BYTES", 10_000)
    async with client_of(whole(b" " * 20_000, "application/json")) as (client, _):
        error = await failure_of(client, asking(stream=False))
    assert isinstance(error, UpstreamBrokenError)
    assert "10000 bytes" in error.message
    assert not error.retryable


async def test_a_web_page_is_called_one() -> None:
    """The commonest mistake, a wrong address, is named."""
    async with client_of(whole(b"<html></html>", "text/html; charset=utf-8")) as (client, _):
        error = await failure_of(client, asking())
    assert "web page" in error.message
    assert "address" in str(error.hint)


async def test_redirects_are_not_followed() -> None:
    """A redirect could lead the key and the prompt elsewhere."""

    async def behave(visit: Visit) -> None:
        await visit.answer(307, b"", headers="Location: /elsewhere\r\n")

    async with client_of(behave, retry=Waits().policy()) as (client, server):
        error = await failure_of(client, asking())
    assert isinstance(error, UpstreamRefusedError)
    assert not error.retryable
    assert len(server.visits) == 1


async def test_no_wait_beyond_the_total_limit() -> None:
    """A wait that could not be followed by an attempt is not begun."""
    waits = Waits()
    behave = refusing(503, headers="Retry-After: 7\r\n")
    async with client_of(behave, timeouts=Timeouts(total_s=5), retry=waits.policy()) as (client, server):
        error = await failure_of(client, asking())
    assert error.retry_after_s == 7
    assert (waits.seconds, len(server.visits)) == ([], 1)


async def test_done_without_hanging_up() -> None:
    """`[DONE]` ends the answer at once, also when the server keeps the line open."""

    async def behave(visit: Visit) -> None:
        await visit.begin_stream()
        for piece in GOOD:
            await visit.piece(piece)
        await hang(visit)

    async with client_of(behave) as (client, server):
        assert text_of(await all_of(client, asking())) == "Hello"
        assert text_of(await all_of(client, asking())) == "Hello"
        assert server.connections == 2


def whole(body: bytes, kind: str) -> Behaviour:
    async def behave(visit: Visit) -> None:
        await visit.answer(200, body, kind=kind)

    return behave


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"<html>Welcome to nginx</html>", "text/html"),
        (b"<html>Welcome to nginx</html>", "text/event-stream"),
        (b"", "application/json"),
        (b"", "text/event-stream"),
        (b"  \n", "application/json"),
        (b"{garbage", "application/json"),
        (b"data: {garbage\n\n", "text/event-stream"),
        (b"[]", "application/json"),
        (b"{}", "application/json"),
        (b'{"choices": []}', "application/json"),
        (b'{"choices": [{"index": 0}]}', "application/json"),
        (b'{"choices": "none"}', "application/json"),
        (b'{"error": {"message": "secret-path failed"}}', "application/json"),
        (b'{"error": "secret-path failed"}', "application/json"),
        (b'{"object": "error", "message": "secret-path failed"}', "application/json"),
        (b'data: {"error": {"message": "secret-path failed"}}\n\n', "text/event-stream"),
        (b'event: error\ndata: {"message": "secret-path failed"}\n\n', "text/event-stream"),
        (b"event: error\ndata: secret-path failed\n\n", "text/event-stream"),
        (b"data: [DONE]\n\n", "text/event-stream"),
        (b'data: {"choices": [{"delta": {"content": "\xff\xfe"}}]}\n\n', "text/event-stream"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_what_is_not_an_answer(body: bytes, kind: str, stream: bool) -> None:
    """Under status 200: pages, nothing, garbage, hidden errors. None of their words are passed on."""
    async with client_of(whole(body, kind)) as (client, _):
        error = await failure_of(client, asking(stream=stream))
    assert isinstance(error, UpstreamBrokenError)
    assert error.retryable
    assert not error.torn
    assert error.http_status == 502
    assert "secret" not in f"{error.message}{error.hint}"
    assert "nginx" not in error.message


async def test_error_in_mid_stream() -> None:
    """An error object among the chunks breaks the answer."""

    async def fail(visit: Visit) -> None:
        await visit.piece(b'data: {"error": {"message": "secret", "code": 500}}\n\n')

    error, _ = await failure_after_first_event(fail)
    assert isinstance(error, UpstreamBrokenError)
    assert error.torn
    assert "secret" not in error.message


async def test_recognised_error_under_200() -> None:
    """A hidden error that says what it is keeps its meaning."""
    body = b'{"error": {"code": 400, "message": "This model\'s maximum context length is 4096 tokens."}}'
    async with client_of(whole(body, "application/json"), retry=Waits().policy()) as (client, server):
        error = await failure_of(client, asking())
    assert (error.code, error.http_status, error.retryable) == ("context_length_exceeded", 400, False)
    assert len(server.visits) == 1


async def test_a_server_that_ignores_stream() -> None:
    """A whole answer to a streamed request is taken as one."""
    body = {"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}
    async with client_of(whole(json.dumps(body).encode(), "application/json; charset=utf-8")) as (client, _):
        assert text_of(await all_of(client, asking())) == "Hello"


async def test_a_stream_under_the_wrong_name() -> None:
    """A stream labelled as plain text is still a stream."""
    async with client_of(whole(b"".join(GOOD), "text/plain")) as (client, _):
        assert text_of(await all_of(client, asking())) == "Hello"


def refusing(status: int, body: bytes = b"{}", headers: str = "") -> Behaviour:
    async def behave(visit: Visit) -> None:
        await visit.answer(status, body, headers=headers)

    return behave


@pytest.mark.parametrize(
    ("status", "body", "code", "http_status", "retryable"),
    [
        (400, b'{"error": {"message": "secret bad field"}}', "upstream_rejected", 400, False),
        (422, b'{"detail": [{"loc": ["secret"]}]}', "upstream_rejected", 400, False),
        (401, b"secret", "upstream_authentication", 502, False),
        (403, b"secret", "upstream_authentication", 502, False),
        (404, b"secret", "model_not_found", 400, False),
        (400, b'{"error": {"code": "model_not_found", "message": "secret"}}', "model_not_found", 400, False),
        (400, b'{"error": {"code": "context_length_exceeded"}}', "context_length_exceeded", 400, False),
        (
            400,
            b'{"object": "error", "message": "This model\'s maximum context length is 8 tokens", "code": 400}',
            "context_length_exceeded",
            400,
            False,
        ),
        (
            400,
            b'{"error": {"code": 400, "type": "exceed_context_size_error", "message": "secret"}}',
            "context_length_exceeded",
            400,
            False,
        ),
        (408, b"", "upstream_error", 502, True),
        (409, b"", "upstream_error", 502, True),
        (425, b"", "upstream_error", 502, True),
        (429, b"secret", "rate_limit_exceeded", 429, True),
        (500, b"secret", "upstream_error", 502, True),
        (503, b"<html>secret</html>", "upstream_error", 502, True),
        (307, b"", "upstream_error", 502, False),
        (204, b"", "upstream_error", 502, False),
    ],
)
async def test_refusals(status: int, body: bytes, code: str, http_status: int, retryable: bool) -> None:
    """Each error status has one meaning, and the body's words stay inside."""
    async with client_of(refusing(status, body)) as (client, _):
        error = await failure_of(client, asking())
    assert isinstance(error, UpstreamRefusedError)
    assert error.upstream_status == status
    assert (error.code, error.http_status, error.retryable) == (code, http_status, retryable)
    assert "secret" not in f"{error.message}{error.hint}"
    assert error.message


async def test_quoted_input_is_not_taken_for_a_reason() -> None:
    """A validation error that quotes the prompt is not read as if the prompt were its reason."""
    body = b'{"error": {"message": "bad field", "input": "prompt is too long, says model_not_found"}}'
    async with client_of(refusing(400, body)) as (client, _):
        assert (await failure_of(client, asking())).code == "upstream_rejected"


async def test_retry_after_is_honoured() -> None:
    """The wait that a server asks for is kept, and then the answer comes."""

    async def behave(visit: Visit) -> None:
        if visit.number == 0:
            await visit.answer(429, b"{}", headers="Retry-After: 7\r\n")
        else:
            await visit.stream(*GOOD)

    waits = Waits()
    async with client_of(behave, retry=waits.policy()) as (client, server):
        assert text_of(await all_of(client, asking(idempotency_key="step_1"))) == "Hello"
    assert waits.seconds == [7.0]
    assert [visit.header("idempotency-key") for visit in server.visits] == ["step_1", "step_1"]


async def test_retry_after_as_a_date() -> None:
    """A date is as good as a number."""
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    async with client_of(refusing(503, headers=f"Retry-After: {then}\r\n")) as (client, _):
        error = await failure_of(client, asking())
    assert error.retry_after_s is not None
    assert 15 < error.retry_after_s <= 20


async def test_retry_after_beyond_the_cap_goes_up() -> None:
    """A server that asks for longer is not waited for; the caller learns for how long."""
    waits = Waits()
    async with client_of(refusing(429, headers="Retry-After: 31\r\n"), retry=waits.policy()) as (
        client,
        server,
    ):
        error = await failure_of(client, asking())
    assert error.retry_after_s == 31
    assert (waits.seconds, len(server.visits)) == ([], 1)


async def test_three_failures_are_the_end() -> None:
    """A server that fails each time is asked three times, with growing waits."""
    waits = Waits()
    async with client_of(refusing(500), retry=waits.policy()) as (client, server):
        error = await failure_of(client, asking())
    assert isinstance(error, UpstreamRefusedError)
    assert len(server.visits) == 3
    assert waits.seconds == [0.125, 0.25]


async def test_second_attempt_succeeds() -> None:
    """A failure before the first event is invisible to the reader."""

    async def behave(visit: Visit) -> None:
        if visit.number == 0:
            await visit.begin_stream()
            visit.writer.close()
        else:
            await visit.stream(*GOOD)

    async with client_of(behave, retry=Waits().policy()) as (client, _):
        assert text_of(await all_of(client, asking())) == "Hello"


async def test_interleaved_calls() -> None:
    """Pieces of two calls that come in turns are kept apart."""

    def piece(index: int, **function: str) -> bytes:
        return chunk({"tool_calls": [{"index": index, "id": f"c{index}", "function": function}]})

    async def behave(visit: Visit) -> None:
        await visit.stream(
            piece(0, name="f", arguments=""),
            piece(1, name="g", arguments=""),
            piece(0, arguments='{"a"'),
            piece(1, arguments='{"b"'),
            piece(0, arguments=":1}"),
            piece(1, arguments=":2}"),
            chunk(finish="tool_calls"),
            DONE,
        )

    async with client_of(behave) as (client, _):
        events = await all_of(client, asking())
    calls: dict[int, list[str]] = {}
    for event in events:
        if isinstance(event, CallDelta):
            call = calls.setdefault(event.index, ["", ""])
            call[0] += event.name
            call[1] += event.arguments
    assert calls == {0: ["f", '{"a":1}'], 1: ["g", '{"b":2}']}
    assert events[-1].finish_reason == "tool_calls"


async def test_closing_the_answer_hangs_up() -> None:
    """A reader that leaves takes the connection along at once."""
    visits: asyncio.Queue[Visit] = asyncio.Queue()

    async def behave(visit: Visit) -> None:
        await visits.put(visit)
        await visit.begin_stream()
        await visit.piece(GOOD[0])
        await hang(visit)

    async with client_of(behave) as (client, _):
        async with aclosing(client.call(asking())) as events:
            assert await anext(events) == TextDelta("He")
        async with asyncio.timeout(5):
            await (await visits.get()).gone.wait()


async def test_cancelling_hangs_up() -> None:
    """So does a task that is cancelled while it waits for the first byte."""
    visits: asyncio.Queue[Visit] = asyncio.Queue()

    async def behave(visit: Visit) -> None:
        await visits.put(visit)
        await hang(visit)

    async with client_of(behave) as (client, _), asyncio.timeout(5):
        task = asyncio.ensure_future(all_of(client, asking()))
        visit = await visits.get()
        task.cancel()
        await visit.gone.wait()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_models_are_listed() -> None:
    """The list stands next to the completions."""

    async def behave(visit: Visit) -> None:
        assert visit.head.startswith("GET /v1/models ")
        await visit.answer(200, b'{"object": "list", "data": [{"id": "a"}, {"id": "b", "x": 1}]}')

    async with client_of(behave) as (client, _):
        assert await client.models() == ["a", "b"]


async def test_a_bad_list_of_models() -> None:
    """What is not a list is said so."""
    async with client_of(whole(b"{}", "application/json")) as (client, _):
        with pytest.raises(UpstreamBrokenError):
            await client.models()
