"""Event streams over real sockets: what they carry, how they end, who may read them and how slowly."""

import asyncio
import contextlib
import json
import socket

import aiohttp
import pytest

from antiphon import Durability, Limits, ServerOptions, tool
from antiphon.testing import Fault, FaultKind, ScriptedCall, Turn, answer_script, fold, turns_script
from antiphon.upstream.retry import RetryPolicy
from serving import judge, judge_response, read_frames, read_stream, serving, text_of, types

pytestmark = pytest.mark.anyio

DONE = b"data: [DONE]\n\n"
LOOK_UP = {"type": "function", "name": "look_up", "parameters": {"type": "object", "properties": {}}}
ASK_HER = {**LOOK_UP, "name": "ask_her"}
QUICK = {"retry": RetryPolicy(base_s=0.001)}


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


# --- when the model server breaks --------------------------------------------------------------------


async def cut_and_resumed(s, body):
    """Read a stream that may be cut, resuming with the cursor; the events of each connection."""
    connections = []
    response_id = None
    while True:
        async with contextlib.AsyncExitStack() as stack:
            if response_id is None:
                request = s.session.post("/v1/responses", json={"model": "fake", **body, "stream": True})
            else:
                query = {"stream": "true", "starting_after": str(connections[-1][-1]["sequence_number"])}
                request = s.session.get(f"/v1/responses/{response_id}", params=query)
            answer = await stack.enter_async_context(request)
            raw, broken = b"", False
            try:
                async for chunk in answer.content.iter_any():
                    raw += chunk
            except (aiohttp.ClientPayloadError, ConnectionError):
                broken = True
            assert broken != raw.endswith(DONE)
            connections.append(read_frames(raw.removesuffix(DONE)))
            response_id = response_id or connections[0][0]["response"]["id"]
            if raw.endswith(DONE):
                return connections


@pytest.mark.parametrize("kind", [FaultKind.CUT_MID_STREAM, FaultKind.END_EARLY, FaultKind.ERROR_MID_STREAM])
async def test_a_torn_answer_is_struck_and_given_anew(store, kind):
    """The reader of a torn answer is cut and resumes; each replay is valid, and no torn word is left."""
    async with serving(
        answer_script("one two three four five six"), store=store, pace_s=0.01, client=QUICK
    ) as s:
        s.upstream.inject(Fault(kind=kind, after=6))
        connections = await cut_and_resumed(s, {"input": "hi"})
        assert len(connections) == 2
        seen = [event for events in connections for event in events]
        judge(seen, resumed=True)
        response = seen[-1]["response"]
        assert response["status"] == "completed"
        torn = connections[0][-1]["sequence_number"]
        replayed = await s.replay(response["id"])
        numbers = [event["sequence_number"] for event in replayed]
        assert numbers[:2] == [0, 1]
        assert numbers[2] > torn
        assert replayed[2]["type"] == "response.in_progress"
        assert fold(replayed)["output"] == response["output"]
        for cursor in range(numbers[-1]):
            await s.replay(response["id"], cursor)
        assert len(s.upstream.requests) == 2
        assert text_of(response).count("[attempt") == 1
        assert "[attempt 1 " in text_of(response)
        old_ids = {e["item_id"] for e in connections[0] if "item_id" in e}
        new_ids = {e["item_id"] for e in replayed if "item_id" in e}
        assert old_ids
        assert not old_ids & new_ids
        assert [e["output_index"] for e in of_type(replayed, "response.output_item.added")] == [0]


async def test_resets_stay_in_band_for_clients_that_asked():
    """With `x-antiphon-resets: inline` the torn stream goes on on the same connection."""
    async with serving(answer_script("one two three four"), pace_s=0.01, client=QUICK) as s:
        s.upstream.inject(Fault(kind=FaultKind.CUT_MID_STREAM, after=5))
        answer = await s.post(
            {"model": "fake", "input": "hi", "stream": True}, headers={"x-antiphon-resets": "inline"}
        )
        events = judge(read_stream(answer), resumed=True)
    assert types(events).count("response.in_progress") == 2
    assert types(events)[-1] == "response.completed"
    assert fold(events)["output"] == events[-1]["response"]["output"]


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


async def test_a_torn_answer_between_tools_keeps_what_was_done(store):
    """When the second turn tears, the first turn's calls stay and are not run again."""
    ran = []

    @tool
    async def book(what: str) -> str:
        """Books."""
        ran.append(what)
        return "booked"

    script = turns_script(
        [Turn(text="First.", calls=(ScriptedCall("book", {"what": "hut"}),)), Turn(text="a b c d e")]
    )
    async with serving(script, store=store, tools=[book], pace_s=0.01, client=QUICK) as s:
        s.upstream.inject(None, Fault(kind=FaultKind.CUT_MID_STREAM, after=4))
        connections = await cut_and_resumed(s, {"input": "hi"})
        response = connections[-1][-1]["response"]
        assert [item["type"] for item in response["output"]] == ["message", "mcp_call", "message"]
        replayed = await s.replay(response["id"])
        reset = of_type(replayed, "response.in_progress")[1]
        assert [item["type"] for item in reset["response"]["output"]] == ["message", "mcp_call"]
        assert [e["output_index"] for e in of_type(replayed, "response.output_item.added")] == [0, 1, 2]
    assert ran == ["hut"]


@pytest.mark.parametrize("stored", [True, False])
async def test_an_answer_that_never_comes_whole_fails(store, stored):
    """After its retries a torn answer ends with one `error` event in both forms, then `response.failed`."""
    limits = Limits(model_attempts=2)
    async with serving(answer_script("one two three four"), store=store, limits=limits, client=QUICK) as s:
        s.upstream.inject(*[Fault(kind=FaultKind.CUT_MID_STREAM, after=4)] * 5)
        connections = await cut_and_resumed(s, {"input": "hi", "store": stored})
        events = [event for each in connections for event in each]
        judge(events, resumed=True)
        error, failed = events[-2:]
        assert error["type"] == "error"
        assert failed["type"] == "response.failed"
        for key in ("code", "message", "param"):
            assert error[key] == error["error"][key]
        assert error["error"]["type"]
        assert failed["response"]["status"] == "failed"
        assert failed["response"]["error"] == {"code": error["code"], "message": error["message"]}
        assert "scripted" not in json.dumps(events)
        assert len(s.upstream.requests) == (2 if stored else 1)
        if stored:
            assert (
                judge_response((await s.get(f"/v1/responses/{failed['response']['id']}")).json)
                == failed["response"]
            )


async def test_a_model_that_refuses_is_told_in_the_stream(store):
    """An upstream that never begins to answer: created, in progress, error, failed."""
    async with serving(store=store, client=QUICK) as s:
        s.upstream.inject(*[Fault(kind=FaultKind.STATUS, status=500)] * 9)
        events = await s.stream({"input": "hi"})
    assert types(events) == ["response.created", "response.in_progress", "error", "response.failed"]


# --- keepalives, disconnects, slow readers -----------------------------------------------------------


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


# --- many at once ------------------------------------------------------------------------------------


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
