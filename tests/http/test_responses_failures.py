"""Model servers and tools that fail: told clearly, in our own words, and nothing is left open."""

import asyncio
import json

import pytest

from antiphon import ChatCompletionsClient, Engine, Limits, UpstreamTarget, tool
from antiphon.testing import Fault, FaultKind, ScriptedCall, Turn, answer_script, turns_script
from antiphon.upstream.chat import Timeouts
from antiphon.upstream.retry import RetryPolicy
from serving import Serving, assert_nothing_hangs, judge, judge_response, read_stream, serving, text_of, types

pytestmark = pytest.mark.anyio

QUICK = {"retry": RetryPolicy(base_s=0.001, retry_after_cap_s=0.01)}


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'work.db'}"


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
