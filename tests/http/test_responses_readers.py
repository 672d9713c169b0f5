"""Readers: kept alive, slow, cut off, coming back, gone for good."""

import asyncio
import contextlib
import json
import socket

import pytest

from antiphon import Durability, ServerOptions, tool
from antiphon.testing import Fault, FaultKind, ScriptedCall, Turn, answer_script, turns_script
from antiphon.upstream.retry import RetryPolicy
from serving import judge, read_frames, read_stream, serving, text_of, types

pytestmark = pytest.mark.anyio

DONE = b"data: [DONE]\n\n"
QUICK = {"retry": RetryPolicy(base_s=0.001)}


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'work.db'}"


def of_type(events, kind):
    return [event for event in events if event["type"] == kind]


def joined(events, kind, **where):
    return "".join(
        event["delta"]
        for event in of_type(events, kind)
        if all(event[key] == value for key, value in where.items())
    )


async def test_comments_keep_a_quiet_stream_alive(store):
    """While model and tool are silent a comment comes now and then, between events."""

    @tool(effect="pure")
    async def slow() -> str:
        """Slow."""
        await asyncio.sleep(0.35)
        return "done"

    script = turns_script([Turn(calls=(ScriptedCall("slow"),)), Turn(text="Done.")])
    async with serving(script, store=store, tools=[slow], options=ServerOptions(keepalive_s=0.05)) as s:
        answer = await s.post({"model": "fake", "input": "hi", "stream": True})
        judge(read_stream(answer))
    comments = [frame for frame in answer.raw.split(b"\n\n") if frame.startswith(b":")]
    assert 3 <= len(comments) <= 12
    waits = (
        answer.raw.index(b"response.mcp_call.in_progress"),
        answer.raw.index(b"response.mcp_call.completed"),
    )
    assert answer.raw[slice(*waits)].count(b"\n\n:") >= 3


async def test_a_busy_stream_needs_no_comments():
    """No comment is sent while events come."""
    async with serving(answer_script("word " * 30), pace_s=0.02, options=ServerOptions(keepalive_s=0.3)) as s:
        answer = await s.post({"model": "fake", "input": "hi", "stream": True})
    assert b"\n\n:" not in answer.raw
    judge(read_stream(answer))


async def slow_reader(s, body, path="/v1/responses"):
    """A connection with small buffers whose owner has sent a request and reads nothing yet."""
    host, _, port = s.url.removeprefix("http://").partition(":")
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
    data = json.dumps(body).encode()
    request = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data
    await asyncio.get_running_loop().sock_sendall(raw, request)
    return raw


async def rest_of(raw, deadline_s=60):
    """Everything that still comes, and whether it is a whole HTTP answer."""
    loop = asyncio.get_running_loop()
    data = b""
    with raw:
        async with asyncio.timeout(deadline_s):
            while not data.endswith(b"\r\n0\r\n\r\n"):
                try:
                    piece = await loop.sock_recv(raw, 1 << 20)
                except ConnectionResetError:
                    break
                if not piece:
                    break
                data += piece
    return data, data.endswith(b"\r\n0\r\n\r\n")


def body_of(raw):
    """The body of a chunked answer."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    assert b" 200 " in head.split(b"\r\n")[0], head
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            break
        body += rest[:length]
        rest = rest[length + 2 :]
    return body


async def test_a_slow_reader_loses_nothing(store):
    """A reader that rests while megabytes of events are made finds every one of them afterwards."""
    async with serving(answer_script("some words " * 12_000, varied=False), store=store) as s:
        reader = await slow_reader(s, {"model": "fake", "input": "hi", "stream": True})
        (listed,) = await until_listed(s)
        ended = await s.until_status(listed["id"], "completed", deadline_s=60)
        raw, whole = await rest_of(reader)
        body = body_of(raw)
        assert whole
        assert len(body) > 4_000_000
        assert body.endswith(DONE)
        events = read_frames(body.removesuffix(DONE))
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert joined(events, "response.output_text.delta") == text_of(ended)
        assert events[-1]["response"] == ended


async def test_a_slow_reader_without_a_log_is_cut_rather_than_cheated():
    """With `store: false` what a slow reader missed is nowhere: its stream is cut, not continued."""
    async with serving(answer_script("some words " * 25_000, varied=False)) as s:
        body = {"model": "fake", "input": "hi", "stream": True, "store": False}
        reader = await slow_reader(s, body)
        await s.upstream.until_requests(1)
        async with asyncio.timeout(60):
            while s.engine.active:
                await asyncio.sleep(0.02)
        raw, whole = await rest_of(reader)
        events = read_frames(body_of(raw).removesuffix(DONE))
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert not whole
        assert types(events)[-1] == "response.output_text.delta"


async def until_listed(s, count=1):
    async with asyncio.timeout(10):
        while len(found := (await s.get("/v1/responses")).json["data"]) < count:
            await asyncio.sleep(0.01)
    return found


async def begin_stream(s, body):
    """A stream that has begun, and what was read of it: its first event."""
    answer = await s.session.post("/v1/responses", json={"model": "fake", **body, "stream": True})
    first = await answer.content.readuntil(b"\n\n")
    return answer, read_frames(first)[0]["response"]["id"]


async def test_a_reader_that_went_away_resumes(store):
    """A connection that is cut by the client is taken up with the cursor, and nothing is missing."""
    async with serving(answer_script("word " * 80), store=store, pace_s=0.005) as s:
        answer, response_id = await begin_stream(s, {"input": "hi"})
        raw = await answer.content.readuntil(b"output_text.delta")
        answer.close()
        rest = await s.replay(response_id, 0)
        assert raw
        assert types(rest)[-1] == "response.completed"
        whole = await s.replay(response_id)
        assert whole[1:] == rest


async def test_a_client_that_leaves_cancels_after_the_grace(store):
    """A foreground stream whose last connection closed is cancelled, and its model call broken off."""
    durability = Durability(grace_s=0.2)
    async with serving(store=store, durability=durability) as s:
        s.upstream.inject(FaultKind.HANG_MID_STREAM)
        answer, response_id = await begin_stream(s, {"input": "hi"})
        await s.upstream.until_hanging()
        answer.close()
        ended = await s.until_status(response_id, "cancelled", "completed", "failed", deadline_s=5)
        assert ended["status"] == "cancelled"
        events = await s.replay(response_id)
        assert types(events)[-1] == "response.failed"
        async with asyncio.timeout(5):
            while s.upstream.hanging:
                await asyncio.sleep(0.01)


async def test_a_json_client_that_leaves_cancels_after_the_grace(store):
    """The same for a POST without a stream, whose response is known by its key."""
    async with serving(store=store, durability=Durability(grace_s=0.2)) as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        posting = asyncio.ensure_future(
            s.post({"model": "fake", "input": "hi"}, headers={"Idempotency-Key": "k"})
        )
        await s.upstream.until_hanging()
        posting.cancel()
        (listed,) = await until_listed(s)
        assert (await s.until_status(listed["id"], "cancelled", deadline_s=5))["status"] == "cancelled"
        async with asyncio.timeout(5):
            while s.upstream.hanging:
                await asyncio.sleep(0.01)


async def test_the_grace_is_granted():
    """Before the grace is over nothing is cancelled: who comes back finds the response running."""
    async with serving(durability=Durability(grace_s=30.0)) as s:
        s.upstream.inject(FaultKind.HANG_MID_STREAM)
        answer, response_id = await begin_stream(s, {"input": "hi"})
        await s.upstream.until_hanging()
        answer.close()
        watching = asyncio.ensure_future(s.replay(response_id))
        await asyncio.sleep(0)
        s.upstream.release()
        assert types(await watching)[-1] == "response.completed"


async def test_a_second_connection_within_the_grace_keeps_it_alive():
    """A reader that attaches in time stops the cancellation, long past the grace."""
    async with serving(durability=Durability(grace_s=0.3)) as s:
        s.upstream.inject(FaultKind.HANG_MID_STREAM)
        answer, response_id = await begin_stream(s, {"input": "hi"})
        await s.upstream.until_hanging()
        answer.close()
        again = await s.session.get(f"/v1/responses/{response_id}?stream=true")
        await again.content.readuntil(b"\n\n")
        with contextlib.suppress(TimeoutError):  # the grace passes, and more
            await asyncio.wait_for(asyncio.shield(s.upstream.until_requests(2)), 0.8)
        assert (await s.get(f"/v1/responses/{response_id}")).json["status"] == "in_progress"
        s.upstream.release()
        rest = await again.read()
        assert rest.endswith(DONE)
        assert (await s.until_status(response_id, "completed"))["status"] == "completed"


async def test_one_reader_of_two_may_leave():
    """As long as one connection is there the response goes on."""
    async with serving(durability=Durability(grace_s=0.1)) as s:
        s.upstream.inject(FaultKind.HANG_MID_STREAM)
        answer, response_id = await begin_stream(s, {"input": "hi"})
        await s.upstream.until_hanging()
        second = await s.session.get(f"/v1/responses/{response_id}?stream=true")
        await second.content.readuntil(b"\n\n")
        answer.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(s.upstream.until_requests(2)), 0.4)
        s.upstream.release()
        assert (await second.read()).endswith(DONE)
        assert (await s.get(f"/v1/responses/{response_id}")).json["status"] == "completed"


@pytest.mark.parametrize("case", ["continue", "background"])
async def test_nobody_needs_to_stay_when_it_goes_on_anyway(store, case):
    """With `on_disconnect="continue"`, and for background responses, leaving cancels nothing."""
    on_disconnect = "continue" if case == "continue" else "cancel"
    durability = Durability(grace_s=0.05, on_disconnect=on_disconnect)
    async with serving(store=store, durability=durability) as s:
        s.upstream.inject(FaultKind.HANG_MID_STREAM)
        answer, response_id = await begin_stream(s, {"input": "hi", "background": case == "background"})
        await s.upstream.until_hanging()
        answer.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(s.upstream.until_requests(2)), 0.4)
        s.upstream.release()
        assert (await s.until_status(response_id, "completed"))["status"] == "completed"


async def test_a_running_tool_with_effects_ends_before_the_cancellation(store):
    """After the client left no new step starts, but a running `once` tool ends and is recorded."""
    started, go = asyncio.Event(), asyncio.Event()

    @tool
    async def book(what: str) -> str:
        """Books."""
        started.set()
        await go.wait()
        return f"booked {what}"

    script = turns_script([Turn(calls=(ScriptedCall("book", {"what": "hut"}),)), Turn(text="Done.")])
    async with serving(script, store=store, tools=[book], durability=Durability(grace_s=0.05)) as s:
        answer, response_id = await begin_stream(s, {"input": "hi"})
        await asyncio.wait_for(started.wait(), 5)
        answer.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(s.upstream.until_requests(2)), 0.3)
        assert (await s.get(f"/v1/responses/{response_id}")).json["status"] == "in_progress"
        go.set()
        ended = await s.until_status(response_id, "cancelled")
        assert ended["output"][0]["output"] == "booked hut"
        assert len(s.upstream.requests) == 1
        judge(await s.replay(response_id))


async def test_a_slow_reader_of_a_torn_answer_is_cut_too():
    """A reader that was behind when the answer tore learns of it all the same."""
    words = "word " * 45_000
    async with serving(answer_script(words), client=QUICK) as s:
        s.upstream.inject(Fault(kind=FaultKind.CUT_MID_STREAM, after=40_000))
        reader = await slow_reader(s, {"model": "fake", "input": "hi", "stream": True})
        await s.upstream.until_requests(2)
        (listed,) = (await s.get("/v1/responses")).json["data"]
        await s.until_status(listed["id"], "completed", deadline_s=60)
        raw, ended = await rest_of(reader)
        events = read_frames(body_of(raw))
        assert not ended, "the stream must be cut, not ended"
        assert 5_000 < events[-1]["sequence_number"] < 40_010
        attempts = {event["item_id"] for event in events if "item_id" in event}
        assert len(attempts) == 1
        rest = await s.replay(listed["id"], events[-1]["sequence_number"])
        assert rest[0]["type"] == "response.in_progress"
