"""What goes wrong is told clearly, with the right status, and leaves nothing behind."""

import asyncio
import contextlib
import gzip
import json
import zlib

import pytest

from antiphon import ChatCompletionsClient, Engine, Limits, ModelRoute, ServerOptions, UpstreamTarget, tool
from antiphon.testing import Fault, FaultKind, ScriptedCall, Turn, answer_script, turns_script
from antiphon.upstream.chat import Timeouts
from antiphon.upstream.retry import RetryPolicy
from serving import Serving, judge, judge_response, read_stream, serving, text_of, types

pytestmark = pytest.mark.anyio

QUICK = {"retry": RetryPolicy(base_s=0.001, retry_after_cap_s=0.01)}
TERMINAL = {"completed", "incomplete", "failed", "cancelled"}
LOOK_UP = {"type": "function", "name": "look_up", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'work.db'}"


async def assert_nothing_hangs(s):
    """No run is left at work, and no stored response without an end."""
    async with asyncio.timeout(5):
        while s.engine.active:
            await asyncio.sleep(0.01)
    page = await s.engine.store.list_responses("default", limit=100)
    assert {row.status for row in page.responses} <= TERMINAL
    return page.responses


# --- requests that cannot be ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b'"text"', b"null", b"42", b'{"model": "fake", "input": "hi"} x', b"\xff\xfe{}", b'{"a":\x00}',
     b'{"model":"fake","input":"\xff"}', b'{"model":"fake","input":"\\ud800"}', b"[" * 100_000, b'{"a":' * 50_000,
     b'{"model":"fake","input":NaN}'],
)  # fmt: skip
async def test_what_is_not_a_json_object_is_refused(raw):
    """Malformed bodies are a 400 in the wire's form, however malformed."""
    async with serving() as s:
        answer = await s.ask("POST", "/v1/responses", data=raw)
        assert answer.status == 400
        assert answer.error["type"] == "invalid_request_error"
        assert await assert_nothing_hangs(s) == ()
    assert s.upstream.requests == []


@pytest.mark.parametrize("levels", [100, 400, 700, 950])
@pytest.mark.parametrize("place", ["metadata", "unknown", "schema"])
async def test_deep_nesting_is_an_answer_not_a_crash(levels, place):
    """Nesting of any depth is taken or refused, never a 500."""
    deep = "1"
    for _ in range(levels):
        deep = f'{{"a":{deep}}}'
    where = {
        "metadata": f'"metadata":{deep}',
        "unknown": f'"something":{deep}',
        "schema": f'"tools":[{{"type":"function","name":"f","parameters":{deep}}}]',
    }[place]
    async with serving() as s:
        answer = await s.ask("POST", "/v1/responses", data=f'{{"model":"fake","input":"x",{where}}}'.encode())
        assert answer.status in {200, 400}, answer.raw[:300]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "hi"}, "model"),
        ({"model": 5, "input": "hi"}, "model"),
        ({"model": "", "input": "hi"}, "model"),
        ({"model": "fake", "input": 5}, "input"),
        ({"model": "fake", "input": ["hi"]}, "input[0]"),
        ({"model": "fake", "input": [{}]}, "input[0].type"),
        ({"model": "fake", "input": [{"type": 5}]}, "input[0].type"),
        ({"model": "fake", "input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
        ({"model": "fake", "input": [{"role": ["user"], "content": "x"}]}, "input[0].role"),
        ({"model": "fake", "input": [{"role": "user"}]}, "input[0].content"),
        ({"model": "fake", "input": [{"role": "user", "content": {"a": 1}}]}, "input[0].content"),
        ({"model": "fake", "input": [{"role": "user", "content": ["x"]}]}, "input[0].content[0]"),
        ({"model": "fake", "input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"model": "fake", "input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]}, "input[0].content[0].text"),
        ({"model": "fake", "input": [{"role": "user", "content": "x", "id": 7}]}, "input[0].id"),
        ({"model": "fake", "input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
        ({"model": "fake", "input": [{"type": "function_call", "call_id": 1, "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"model": "fake", "input": [{"type": "function_call_output", "call_id": "c", "output": 5}]}, "input[0].output"),
        ({"model": "fake", "input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"model": "fake", "input": "hi", "stream": "yes"}, "stream"),
        ({"model": "fake", "input": "hi", "temperature": "hot"}, "temperature"),
        ({"model": "fake", "input": "hi", "temperature": 3}, "temperature"),
        ({"model": "fake", "input": "hi", "top_p": -1}, "top_p"),
        ({"model": "fake", "input": "hi", "max_output_tokens": 15}, "max_output_tokens"),
        ({"model": "fake", "input": "hi", "max_output_tokens": 10**30}, "max_output_tokens"),
        ({"model": "fake", "input": "hi", "metadata": {"a": 1}}, "metadata"),
        ({"model": "fake", "input": "hi", "metadata": {"a": "x" * 513}}, "metadata"),
        ({"model": "fake", "input": "hi", "metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"model": "fake", "input": "hi", "tools": {}}, "tools"),
        ({"model": "fake", "input": "hi", "tools": [{}]}, "tools[0].type"),
        ({"model": "fake", "input": "hi", "tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"model": "fake", "input": "hi", "tools": [{"type": "function", "name": "a" * 65}]}, "tools[0].name"),
        ({"model": "fake", "input": "hi", "tools": [{"type": "function", "name": "a\n"}]}, "tools[0].name"),
        ({"model": "fake", "input": "hi", "tools": [LOOK_UP, LOOK_UP]}, "tools[1].name"),
        ({"model": "fake", "input": "hi", "tools": [{"type": "function", "name": "f", "parameters": "x"}]}, "tools[0].parameters"),
        ({"model": "fake", "input": "hi", "tool_choice": "sometimes"}, "tool_choice"),
        ({"model": "fake", "input": "hi", "tool_choice": "required"}, "tool_choice"),
        ({"model": "fake", "input": "hi", "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"model": "fake", "input": "hi", "tool_choice": {"type": "function", "name": "nope"}}, "tool_choice"),
        ({"model": "fake", "input": "hi", "text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"model": "fake", "input": "hi", "text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"model": "fake", "input": "hi", "text": {"format": "json"}}, "text.format"),
        ({"model": "fake", "input": "hi", "truncation": "maybe"}, "truncation"),
        ({"model": "fake", "input": "hi", "background": True, "store": False}, "background"),
        ({"model": "fake", "input": "hi", "conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"),
        ({"model": "fake", "input": "hi", "previous_response_id": 5}, "previous_response_id"),
        ({"model": "fake", "input": "hi", "include": "x"}, "include"),
        ({"model": "fake", "input": "hi", "reasoning": "hard"}, "reasoning"),
        ({"model": "fake", "input": "a\x00b"}, "input"),
        ({"model": "fake", "input": [{"role": "user", "content": [{"type": "input_text", "text": "\x00"}]}]}, "input[0].content[0].text"),
        ({"model": "fake", "input": "hi", "instructions": "\x00"}, "instructions"),
        ({"model": "fake", "input": "hi", "metadata": {"k": "\x00"}}, "metadata.k"),
        ({"model": "fake", "input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input"),
        ({"model": "fake", "input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
async def test_wrong_parameters_are_named_by_their_path(body, param):
    """A 400 whose `param` is the place in the body; streams and background are refused the same way."""
    async with serving() as s:
        for mode in ({}, {"stream": True}, {"background": True, "store": True}):
            if set(mode) & set(body):
                continue
            answer = await s.post({**body, **mode})
            assert answer.status == 400, answer.raw[:300]
            assert answer.error["type"] == "invalid_request_error"
            assert answer.error["param"].startswith(param), answer.error
        assert await assert_nothing_hangs(s) == ()
    assert s.upstream.requests == []


async def test_limits_that_just_hold():
    """What stands right at a limit is taken."""
    body = {
        "input": "hi",
        "max_output_tokens": 16,
        "metadata": {str(n): "x" * 512 for n in range(16)},
        "tools": [{**LOOK_UP, "name": "a" * 64}, {**LOOK_UP, "name": "-_9"}],
        "temperature": 0,
        "top_p": 0,
    }
    async with serving() as s:
        made = await s.create(body)
    assert made["metadata"] == body["metadata"]
    assert made["temperature"] == 0


async def test_an_unknown_model_is_refused_before_anything_starts(store):
    """With routes, a name that leads nowhere is a 400 that names the model and the known ones."""
    models = {"known": ModelRoute(upstreams=("default",))}
    async with serving(store=store, models=models) as s:
        for body in ({"input": "hi"}, {"input": "hi", "stream": True}, {"input": "hi", "background": True}):
            answer = await s.post({"model": "unknown", **body})
            assert answer.status == 400
            assert answer.error["code"] == "model_not_found"
            assert answer.error["param"] == "model"
            assert "known" in answer.error["message"]
        assert await assert_nothing_hangs(s) == ()
        assert (await s.post({"model": "known", "input": "hi"})).status == 200


async def test_an_unknown_previous_response_is_a_400(store):
    """404 is for ids in the path only."""
    async with serving(store=store) as s:
        for previous in ("resp_none", "%", "", "resp_" + "x" * 5000):
            answer = await s.post({"model": "fake", "input": "hi", "previous_response_id": previous})
            assert answer.status == 400
            assert answer.error["param"] == "previous_response_id"
            assert answer.error["code"] == "previous_response_not_found"


async def test_an_output_without_its_call_is_named(store):
    """The message is the one that official clients know."""
    async with serving(store=store) as s:
        output = {"type": "function_call_output", "call_id": "call_7", "output": "x"}
        answer = await s.post({"model": "fake", "input": [output]})
        assert answer.status == 400
        assert answer.error["message"] == "No tool call found for function call output with call_id call_7."
        call = {"type": "function_call", "call_id": "call_7", "name": "f", "arguments": "{}"}
        after = await s.post({"model": "fake", "input": [output, call]})
        assert after.status == 400
        assert (await s.post({"model": "fake", "input": [call, output]})).status == 200


async def test_an_unanswered_call_is_named(store):
    """A call of the turn before that nobody answered is refused with its id."""
    script = turns_script([Turn(calls=(ScriptedCall("look_up"), ScriptedCall("look_up")))])
    async with serving(script, store=store) as s:
        made = await s.create({"input": "hi", "tools": [LOOK_UP]})
        first, second = (item["call_id"] for item in made["output"])
        body = {"model": "fake", "previous_response_id": made["id"]}
        nothing = await s.post({**body, "input": "go on"})
        assert nothing.status == 400
        assert nothing.error["message"].startswith(f"No tool output found for function call {first}")
        half = await s.post(
            {**body, "input": [{"type": "function_call_output", "call_id": first, "output": "x"}]}
        )
        assert half.status == 400
        assert half.error["message"].startswith(f"No tool output found for function call {second}")


async def test_continuing_what_still_runs_is_a_conflict(store):
    """A response that has not ended cannot be continued yet."""
    async with serving(store=store) as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        begun = await s.create({"input": "hi", "background": True})
        answer = await s.post({"model": "fake", "input": "more", "previous_response_id": begun["id"]})
        assert answer.status == 409
        assert answer.error["type"] == "conflict_error"
        s.upstream.release()
        await s.until_status(begun["id"], "completed")


async def test_nul_in_a_tools_output_harms_nobody(store):
    """A tool may give NUL characters and lone surrogates: the response completes and can be continued."""

    @tool(effect="pure")
    async def raw() -> str:
        """Gives raw bytes."""
        return "a\x00b"

    @tool(effect="pure")
    async def broken() -> str:
        """Gives half a character."""
        return "a\ud83d"

    script = turns_script([Turn(calls=(ScriptedCall("raw"), ScriptedCall("broken"))), Turn(text="Done.")])
    async with serving(script, store=store, tools=[raw, broken]) as s:
        events = await s.stream({"input": "hi"})
        response = events[-1]["response"]
        assert response["status"] == "completed"
        assert response["output"][0]["output"].startswith("a\ufffdb")
        assert "\\u0000" not in json.dumps(response)
        assert (await s.get(f"/v1/responses/{response['id']}")).json == response
        await s.create({"input": "more", "previous_response_id": response["id"]})


async def test_nul_from_the_model_harms_nobody(store):
    """A model that writes NUL characters does not break the response, its storage or its stream."""
    call = ScriptedCall("look_up", {"what": "x\x00y"})
    async with serving(turns_script([Turn(text="a\x00b", calls=(call,))]), store=store) as s:
        events = await s.stream({"input": "hi", "tools": [LOOK_UP]})
        made = await s.create({"input": "hi", "tools": [LOOK_UP]})
        for response in (events[-1]["response"], made):
            assert response["status"] == "completed"
            assert (await s.get(f"/v1/responses/{response['id']}")).json == response


# --- bodies ------------------------------------------------------------------------------------------


async def test_text_beyond_the_limit_is_refused_by_name():
    """Ten megabytes of text are too much, in one string or in many; the answer says how much there was."""
    text = "x" * (20 * 1024 * 1024)
    async with serving() as s:
        for given in (text, [{"role": "user", "content": text[:6_000_000]}] * 2):
            answer = await s.post({"model": "fake", "input": given})
            assert answer.status == 400
            assert answer.error["param"] == "input"
            assert len(answer.raw) < 2000
        assert await assert_nothing_hangs(s) == ()


async def test_images_of_several_megabytes_pass():
    """A data URL below its own limit does not count as text."""
    url = "data:image/png;base64," + "A" * (12 * 1024 * 1024)
    parts = [{"type": "input_text", "text": "what is it?"}, {"type": "input_image", "image_url": url}]
    async with serving() as s:
        made = await s.create({"input": [{"role": "user", "content": parts}]})
        assert made["status"] == "completed"
        assert s.upstream.requests[0].body["messages"][0]["content"][1]["image_url"]["url"] == url
        parts[1]["image_url"] = url + "A" * (9 * 1024 * 1024)
        answer = await s.post({"model": "fake", "input": [{"role": "user", "content": parts}]})
        assert answer.status == 400
        assert answer.error["param"] == "input[0].content[1].image_url"


async def test_a_body_above_the_bound_is_413():
    """Refused by its declared length, and when it is sent in pieces without one."""
    async with serving(options=ServerOptions(max_body_bytes=100_000)) as s:
        body = json.dumps({"model": "fake", "input": "x" * 200_000}).encode()

        async def pieces():
            for start in range(0, len(body), 8192):
                yield body[start : start + 8192]

        for data in (body, pieces()):
            answer = await s.ask("POST", "/v1/responses", data=data)
            assert answer.status == 413
            assert answer.error["code"] == "request_too_large"
        assert (await s.post({"model": "fake", "input": "small"})).status == 200


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_compressed_bodies_are_read(encoding):
    """A compressed body is the same request as the plain one."""
    plain = json.dumps({"model": "fake", "input": "hello " * 1000}).encode()
    packed = gzip.compress(plain) if encoding == "gzip" else zlib.compress(plain)
    async with serving() as s:
        answer = await s.ask("POST", "/v1/responses", data=packed, headers={"Content-Encoding": encoding})
        assert answer.status == 200, answer.raw
        assert s.upstream.requests[0].body["messages"][0]["content"] == "hello " * 1000


async def test_a_bomb_does_not_go_off():
    """A small body that unpacks to more than the bound is a 413, and costs no more than the bound."""
    bomb = gzip.compress(b"[" + b" " * 60_000_000, 9)
    assert len(bomb) < 1_000_000
    async with serving(options=ServerOptions(max_body_bytes=1_000_000)) as s:
        answer = await s.ask("POST", "/v1/responses", data=bomb, headers={"Content-Encoding": "gzip"})
        assert answer.status == 413
        assert answer.error["code"] == "request_too_large"


@pytest.mark.parametrize(
    ("data", "encoding", "status"),
    [(b"not gzip", "gzip", 400), (gzip.compress(b"{}" * 5000)[:-9], "gzip", 400), (b"{}", "br", 415), (b"{}", "x" * 300, 415)],
    ids=["no gzip", "cut gzip", "brotli", "nonsense"],
)  # fmt: skip
async def test_bodies_that_cannot_be_unpacked(data, encoding, status):
    """Broken or unknown compression is told as such."""
    async with serving() as s:
        answer = await s.ask("POST", "/v1/responses", data=data, headers={"Content-Encoding": encoding})
        assert answer.status == status
        assert answer.error["type"] == "invalid_request_error"


async def test_a_client_that_hangs_up_in_its_body_leaves_nothing():
    """Half a body starts nothing, and the server goes on."""
    async with serving() as s:
        host, _, port = s.url.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b'POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{"model"')
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await s.post({"model": "fake", "input": "hi"})).status == 200
        assert len(await assert_nothing_hangs(s)) == 1


# --- upstreams ---------------------------------------------------------------------------------------

SECRET = "scripted failure"

UPSTREAM_FAILURES = [
    ("500", Fault(kind=FaultKind.STATUS, status=500), 502, "upstream_error"),
    ("503", Fault(kind=FaultKind.STATUS, status=503), 502, "upstream_error"),
    ("400", Fault(kind=FaultKind.STATUS, status=400), 400, "upstream_rejected"),
    ("401", Fault(kind=FaultKind.STATUS, status=401), 502, "upstream_authentication"),
    ("404", Fault(kind=FaultKind.STATUS, status=404), 400, "model_not_found"),
    ("302", Fault(kind=FaultKind.STATUS, status=302), 502, "upstream_error"),
    ("429", Fault(kind=FaultKind.STATUS, status=429, retry_after=7), 429, "rate_limit_exceeded"),
    ("html", Fault(kind=FaultKind.HTML), 502, "upstream_broken"),
    ("garbage", Fault(kind=FaultKind.GARBAGE), 502, "upstream_broken"),
    ("empty", Fault(kind=FaultKind.EMPTY), 502, "upstream_broken"),
    ("error in 200", Fault(kind=FaultKind.ERROR_IN_200), 502, "upstream_error"),
    ("cut", Fault(kind=FaultKind.CUT_MID_STREAM, after=0), 502, None),
]


@pytest.mark.parametrize(
    ("fault", "status", "code"), [f[1:] for f in UPSTREAM_FAILURES], ids=[f[0] for f in UPSTREAM_FAILURES]
)
async def test_each_failure_of_the_model_server_is_told_clearly(store, fault, status, code):
    """Status and code of our own, no word of the upstream's body, no retry by the client, no row left open."""
    async with serving(store=store, client=QUICK, limits=Limits(model_attempts=1)) as s:
        s.upstream.inject(*[fault] * 20)
        answer = await s.post({"model": "fake", "input": "hi"})
        assert answer.status == status, answer.raw
        error = answer.error
        assert code is None or error["code"] == code
        assert answer.headers["x-should-retry"] == "false"
        assert SECRET not in answer.raw.decode()
        assert "<html" not in answer.raw.decode()
        assert s.upstream.url not in answer.raw.decode()
        if status == 429:
            assert error["type"] == "rate_limit_error"
            assert answer.headers["retry-after"] == "7"
        events = await s.stream({"input": "hi"})
        assert types(events)[-2:] == ["error", "response.failed"]
        assert code is None or events[-1]["response"]["error"]["code"] == code
        assert SECRET not in json.dumps(events)
        stored = await assert_nothing_hangs(s)
        assert [row.status for row in stored] == ["failed", "failed"]
        response_id = answer.headers["x-antiphon-response-id"]
        failed = judge_response((await s.get(f"/v1/responses/{response_id}")).json)
        assert failed["error"]["code"] == error["code"]
        replay = await s.get(f"/v1/responses/{response_id}?stream=true")
        judge(read_stream(replay))


async def test_a_refused_connection_is_told(store):
    """Nobody listens at the upstream's address: 502, with what to check."""
    target = UpstreamTarget("http://127.0.0.1:9", "/v1/chat/completions")
    async with (
        ChatCompletionsClient(target, **QUICK) as client,
        Serving(Engine(store=store, upstream=client)) as s,
    ):
        answer = await s.post({"model": "fake", "input": "hi"})
        assert answer.status == 502
        assert answer.error["code"] == "upstream_unreachable"
        assert answer.headers["x-should-retry"] == "false"
        assert (await s.get("/v1/models")).status in {200, 502}
        await assert_nothing_hangs(s)


@pytest.mark.parametrize("kind", [FaultKind.HANG_BEFORE_HEADERS, FaultKind.HANG_MID_STREAM])
async def test_a_model_server_that_hangs_is_given_up(store, kind):
    """Silence beyond the deadline is a 504."""
    client = {"timeouts": Timeouts(first_byte_s=0.05, idle_s=0.2), "retry": RetryPolicy(attempts=1)}
    async with serving(store=store, client=client, limits=Limits(model_attempts=1)) as s:
        s.upstream.inject(*[Fault(kind=kind, after=3)] * 9)
        answer = await s.post({"model": "fake", "input": "hi"})
        assert answer.status == 504, answer.raw
        assert answer.error["code"] == "upstream_timeout"
        assert answer.headers["x-should-retry"] == "false"
        events = await s.stream({"input": "hi"})
        assert events[-1]["response"]["error"]["code"] == "upstream_timeout"
        await assert_nothing_hangs(s)


async def test_a_context_that_is_too_long_is_the_callers_to_mend(store):
    """What upstreams say of their context length becomes a 400 with the wire's code."""
    from aiohttp import web

    said = "This model's maximum context length is 8 tokens; /srv/models/secret asked for 9."

    async def refuse(_request):
        return web.json_response({"error": {"message": said, "code": 400}}, status=400)

    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", refuse)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        async with Serving(Engine(store=store, upstream=url)) as s:
            answer = await s.post({"model": "fake", "input": "hi"})
            assert answer.status == 400
            assert answer.error["code"] == "context_length_exceeded"
            assert answer.error["type"] == "invalid_request_error"
            assert "secret" not in answer.raw.decode()
            await assert_nothing_hangs(s)
    finally:
        await runner.cleanup()


async def test_a_passing_failure_is_never_seen():
    """A model server that fails before its first word and then answers costs only time."""
    async with serving(answer_script("Here."), client=QUICK) as s:
        for fault in (FaultKind.STATUS, FaultKind.HTML, FaultKind.EMPTY):
            s.upstream.inject(fault)
            made = await s.create({"input": "hi"})
            assert text_of(made).endswith("Here.")


async def test_a_tool_that_breaks_is_the_models_to_mend(store):
    """Tools that raise, time out, get bad arguments or give what is no JSON: the response completes."""

    @tool(effect="pure", timeout=0.05)
    async def sleepy() -> str:
        """Sleeps."""
        await asyncio.sleep(5)
        return ""

    @tool(effect="pure")
    async def strict(n: int) -> object:
        """Strict."""
        return object()

    calls = (
        ScriptedCall("sleepy"),
        ScriptedCall("strict", {"n": "x"}),
        ScriptedCall("strict", '{"n": 1'),
        ScriptedCall("strict", {"n": 1}),
        ScriptedCall("strict", "[1]"),
    )
    async with serving(
        turns_script([Turn(calls=calls), Turn(text="I see.")]), store=store, tools=[sleepy, strict]
    ) as s:
        made = await s.create({"input": "hi"})
        assert made["status"] == "completed"
        assert [item["status"] for item in made["output"][:5]] == ["failed"] * 5
        assert "Traceback" not in json.dumps(made)
        assert "n" in made["output"][1]["error"]["content"][0]["text"]
        await assert_nothing_hangs(s)


# --- limits ------------------------------------------------------------------------------------------


async def test_more_than_may_wait_is_told_when_to_come_back(store):
    """Running and waiting places full: 429 with Retry-After; the queued ones are served in order."""
    async with serving(store=store, limits=Limits(running=1, waiting=2)) as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        running = await s.create({"input": "r", "background": True})
        assert running["status"] == "in_progress"
        await s.upstream.until_hanging()
        first = await s.create({"input": "w1", "background": True})
        second = asyncio.ensure_future(s.stream({"input": "w2"}))
        await until_waiting(s, 3)
        assert first["status"] == "queued"
        for mode in ({}, {"stream": True}, {"background": True}):
            answer = await s.post({"model": "fake", "input": "too much", **mode})
            assert answer.status == 429
            assert answer.error["type"] == "rate_limit_error"
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.headers["x-ratelimit-remaining-requests"] == "0"
            assert answer.headers["x-ratelimit-limit-requests"] == "3"
            assert answer.headers.get("x-should-retry") != "false", "nothing was admitted: a retry is right"
        assert (await s.get(f"/v1/responses/{first['id']}")).json["status"] == "queued"
        assert "antiphon_responses_waiting 2.0" in (await s.get("/metrics")).raw.decode()
        s.upstream.release()
        events = await asyncio.wait_for(second, 10)
        assert types(events)[:3] == ["response.created", "response.queued", "response.in_progress"]
        assert events[1]["response"]["status"] == "queued"
        replayed = await s.replay(first["id"])
        assert types(replayed)[:3] == ["response.created", "response.queued", "response.in_progress"]
        await s.until_status(first["id"], "completed")
        assert "antiphon_responses_waiting 0.0" in (await s.get("/metrics")).raw.decode()
        assert (await s.create({"input": "room again"}))["status"] == "completed"
        await assert_nothing_hangs(s)
    prompts = [request.body["messages"][-1]["content"] for request in s.upstream.requests]
    assert prompts == ["r", "w1", "w2", "room again"]


async def until_waiting(s, count):
    async with asyncio.timeout(5):
        while len(s.engine.active) < count:
            await asyncio.sleep(0.005)


async def test_many_more_than_run_at_once_all_end(store):
    """Sixty foreground requests through four places: all are answered, each with its own words."""
    async with serving(answer_script("Done."), store=store, limits=Limits(running=4, waiting=100)) as s:
        answers = await asyncio.gather(*(s.post({"model": "fake", "input": f"n{n}"}) for n in range(60)))
        assert {answer.status for answer in answers} == {200}
        assert len({text_of(answer.json) for answer in answers}) == 60
        await assert_nothing_hangs(s)


async def test_iteration_and_tool_call_limits_end_incomplete(store):
    """A model that never stops calling is stopped; what it did is kept and the next turn is possible."""

    @tool(effect="pure")
    async def again() -> str:
        """Again."""
        return "again"

    def script(request):
        return (
            Turn(text="Fine.")
            if request.prompt != "loop"
            else Turn(calls=(ScriptedCall("again"), ScriptedCall("again")))
        )

    async with serving(script, store=store, tools=[again], limits=Limits(max_iterations=3)) as s:
        events = await s.stream({"input": "loop"})
        response = events[-1]["response"]
        assert types(events)[-1] == "response.incomplete"
        assert response["incomplete_details"]["reason"] == "max_iterations"
        assert len(response["output"]) == 6
        after = await s.create({"input": "and now?", "previous_response_id": response["id"]})
        assert after["status"] == "completed"
        events = await s.stream({"input": "loop", "max_tool_calls": 3})
        response = events[-1]["response"]
        assert response["incomplete_details"]["reason"] == "max_tool_calls"
        assert sum(item["output"] == "again" for item in response["output"]) == 3
        await s.create({"input": "and now?", "previous_response_id": response["id"]})


# --- idempotency and retries -------------------------------------------------------------------------


async def test_one_key_and_one_body_is_one_response(store):
    """The second request with a key gets the first one's response, as JSON and as a stream."""
    async with serving(store=store) as s:
        for body in ({"input": "hi"}, {"input": "hi", "stream": True}, {"input": "hi", "background": True}):
            key = {"Idempotency-Key": json.dumps(body)}
            first = await s.post({"model": "fake", **body}, headers=key)
            response_id = first.headers["x-antiphon-response-id"]
            await s.until_status(response_id, "completed")
            again = await s.post({"model": "fake", **body}, headers=key)
            assert again.status == 200
            assert again.headers["x-antiphon-response-id"] == response_id
            if "background" not in body:
                assert again.raw == first.raw
        assert len(s.upstream.requests) == 3
        other = await s.post(
            {"model": "fake", "input": "other"}, headers={"Idempotency-Key": json.dumps({"input": "hi"})}
        )
        assert other.status == 422
        assert other.error["code"] == "idempotency_key_reused"


async def test_one_key_at_the_same_time_is_one_response(store):
    """Twenty requests with one key, started together, share one response and one model call."""
    async with serving(store=store, pace_s=0.01) as s:
        body = {"model": "fake", "input": "hi"}
        for mode in ({}, {"stream": True}):
            answers = await asyncio.gather(
                *(s.post({**body, **mode}, headers={"Idempotency-Key": f"k{mode}"}) for _ in range(20))
            )
            assert {answer.status for answer in answers} == {200}, [
                a.raw for a in answers if a.status != 200
            ][:2]
            assert len({answer.headers["x-antiphon-response-id"] for answer in answers}) == 1
            assert len({answer.raw for answer in answers}) == 1
        assert len(s.upstream.requests) == 2
        assert len(await assert_nothing_hangs(s)) == 2


async def test_one_key_joins_what_still_runs(store):
    """A second request with the key of a running response waits for the same end."""
    async with serving(store=store) as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        key = {"Idempotency-Key": "k"}
        first = asyncio.ensure_future(s.post({"model": "fake", "input": "hi"}, headers=key))
        await s.upstream.until_hanging()
        second = asyncio.ensure_future(s.post({"model": "fake", "input": "hi"}, headers=key))
        other = await s.post({"model": "fake", "input": "other"}, headers=key)
        assert other.status == 422
        s.upstream.release()
        one, two = await asyncio.gather(first, second)
        assert one.json == two.json
        assert len(s.upstream.requests) == 1


async def test_a_key_keeps_its_failure(store):
    """A keyed request that failed fails again in the same way, without asking the model again."""
    async with serving(store=store, client=QUICK) as s:
        s.upstream.inject(Fault(kind=FaultKind.STATUS, status=400))
        key = {"Idempotency-Key": "k"}
        first = await s.post({"model": "fake", "input": "hi"}, headers=key)
        again = await s.post({"model": "fake", "input": "hi"}, headers=key)
        assert first.status == again.status == 400
        assert first.json == again.json
        assert len(s.upstream.requests) == 1


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_keys_have_a_length(key):
    """A key of no or of too many characters is refused."""
    async with serving() as s:
        answer = await s.post({"model": "fake", "input": "hi"}, headers={"Idempotency-Key": key})
        assert answer.status == 400
        assert answer.error["param"] == "Idempotency-Key"


async def test_a_key_needs_storage():
    """`store: false` remembers nothing, so a key with it is refused rather than ignored."""
    async with serving() as s:
        answer = await s.post(
            {"model": "fake", "input": "hi", "store": False}, headers={"Idempotency-Key": "k"}
        )
        assert answer.status == 400
        assert answer.error["param"] in {"store", "Idempotency-Key"}


RETRIED = {"x-stainless-retry-count": "1"}


@pytest.mark.parametrize("mode", [{}, {"stream": True}], ids=["json", "stream"])
async def test_an_automatic_retry_joins_its_first_attempt(store, mode):
    """After a lost connection the client's own retry gets the response that its first attempt began."""
    async with serving(store=store) as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        body = {"model": "fake", "input": "hi", **mode}
        first = asyncio.ensure_future(s.post(body))
        await s.upstream.until_hanging()
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        retry = asyncio.ensure_future(s.post(body, headers=RETRIED))
        await asyncio.sleep(0)
        s.upstream.release()
        answer = await asyncio.wait_for(retry, 10)
        assert answer.status == 200
        assert len(s.upstream.requests) == 1
        if mode:
            judge(read_stream(answer))
        assert len(await assert_nothing_hangs(s)) == 1


async def test_a_retry_finds_what_ended_unheard(store):
    """A response that ended while its client was gone is given to the retry."""
    async with serving(store=store) as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        first = asyncio.ensure_future(s.post({"model": "fake", "input": "hi"}))
        await s.upstream.until_hanging()
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        async with asyncio.timeout(5):  # the server has seen that the client left
            while any(run.readers for run in s.engine.active.values()):
                await asyncio.sleep(0.005)
        s.upstream.release()
        (ended,) = await assert_nothing_hangs(s)
        answer = await s.post({"model": "fake", "input": "hi"}, headers=RETRIED)
        assert answer.json["id"] == ended.response_id
        assert len(s.upstream.requests) == 1


@pytest.mark.parametrize("mode", [{}, {"stream": True}], ids=["json", "stream"])
async def test_a_retry_never_gets_what_was_delivered(store, mode):
    """An answer that reached its client is not given to another request that merely looks the same."""
    async with serving(store=store) as s:
        body = {"model": "fake", "input": "hi", **mode}
        first = await s.post(body)
        second = await s.post(body, headers=RETRIED)
        assert second.status == 200
        assert first.headers["x-antiphon-response-id"] != second.headers["x-antiphon-response-id"]
        assert len(s.upstream.requests) == 2


async def test_a_first_attempt_is_never_joined(store):
    """Without the retry header the same body is a new response, also while one runs."""
    async with serving(store=store) as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        first = asyncio.ensure_future(s.post({"model": "fake", "input": "hi"}))
        await s.upstream.until_hanging()
        second = await s.post({"model": "fake", "input": "hi"})
        s.upstream.release()
        assert (await first).json["id"] != second.json["id"]


async def test_a_retry_with_another_body_is_a_request_of_its_own(store):
    """Only the same body is the same request."""
    async with serving(store=store) as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        first = asyncio.ensure_future(s.post({"model": "fake", "input": "hi"}))
        await s.upstream.until_hanging()
        other = await s.post({"model": "fake", "input": "ho"}, headers=RETRIED)
        s.upstream.release()
        assert (await first).json["id"] != other.json["id"]
