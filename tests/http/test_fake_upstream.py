"""The scripted model server: what it answers, what it records, how it fails."""

import asyncio
import json
import sys

import aiohttp
import msgspec
import pytest

from antiphon.core.sse import SseSplitter
from antiphon.testing import (
    FakeUpstream,
    Fault,
    FaultKind,
    ScriptedCall,
    Turn,
    answer_script,
    loop_script,
    turns_script,
)

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "go"}


def body(messages=(USER,), **more):
    return {"model": "m", "messages": list(messages), **more}


@pytest.fixture
async def session():
    timeout = aiohttp.ClientTimeout(total=20)
    async with aiohttp.ClientSession(timeout=timeout) as made:
        yield made


async def ask(session, upstream, sent=None, **headers):
    url = upstream.url + "/v1/chat/completions"
    async with session.post(url, data=msgspec.json.encode(sent or body()), headers=headers) as answer:
        return answer.status, dict(answer.headers), await answer.read()


async def stream(session, upstream, sent=None):
    _, headers, raw = await ask(session, upstream, {**(sent or body()), "stream": True})
    assert headers["Content-Type"] == "text/event-stream"
    *chunks, done = SseSplitter().feed(raw)
    assert done == b"[DONE]"
    return [json.loads(chunk) for chunk in chunks]


def text_of(chunks, key="content"):
    return "".join(c["choices"][0]["delta"].get(key) or "" for c in chunks if c["choices"])


def calls_of(chunks):
    calls = {}
    for chunk in chunks:
        for piece in (chunk["choices"] or [{"delta": {}}])[0]["delta"].get("tool_calls", ()):
            call = calls.setdefault(piece["index"], {"name": "", "arguments": ""})
            call["name"] += piece["function"].get("name", "")
            call["arguments"] += piece["function"]["arguments"]
    return [(call["name"], json.loads(call["arguments"])) for call in calls.values()]


async def test_both_forms_say_the_script(session):
    """Streamed and collected answers carry the same text, reasoning and finish."""
    async with FakeUpstream(answer_script("Hello there.", reasoning="Hm.")) as upstream:
        chunks = await stream(session, upstream, body(stream_options={"include_usage": True}))
        assert text_of(chunks).endswith("Hello there.")
        assert text_of(chunks, "reasoning_content").endswith("Hm.")
        assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
        usage = chunks[-1]["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        _, _, raw = await ask(session, upstream)
        message = json.loads(raw)["choices"][0]["message"]
        assert message["content"].endswith("Hello there.")
        assert message["reasoning_content"].endswith("Hm.")


async def test_attempts_differ_in_their_words(session):
    """The same request never gets the same text twice: torn answers cannot hide."""
    async with FakeUpstream() as upstream:
        assert text_of(await stream(session, upstream)) != text_of(await stream(session, upstream))


@pytest.mark.parametrize("interleaved", [False, True])
async def test_the_loop_script_depends_on_the_messages_alone(session, interleaved):
    """Any server, at any time, is asked for the same calls after the same messages; all are distinct."""
    script = loop_script(model_calls=3, tools=["a", "b"], per_turn=3, interleaved=interleaved)
    messages, seen = [USER], []
    for _ in range(2):
        async with FakeUpstream(script) as upstream:  # a new one each time, as after a restart
            calls = calls_of(await stream(session, upstream, body(messages)))
        seen.extend(calls)
        messages.append({"role": "assistant", "content": None, "tool_calls": []})
        messages.extend({"role": "tool", "content": "ok"} for _ in calls)
    async with FakeUpstream(script) as upstream:
        assert calls_of(await stream(session, upstream, body(messages))) == []
        again = [*messages, {"role": "assistant", "content": "done"}, USER]
        assert calls_of(await stream(session, upstream, body(again))) == seen[:3]
    assert [name for name, _ in seen] == ["a", "b", "a", "b", "a", "b"]
    assert len({json.dumps(arguments) for _, arguments in seen}) == 6
    assert seen[0][1] == {"run": "go", "turn": 0, "index": 0}


async def test_interleaved_pieces_alternate(session):
    """Pieces of parallel calls come in turns when the script says so."""
    calls = (ScriptedCall("a", {"x": "long enough"}), ScriptedCall("b", '{"raw": "text here"}'))
    async with FakeUpstream(turns_script([Turn(calls=calls, interleaved=True)])) as upstream:
        chunks = await stream(session, upstream)
        order = [p["index"] for c in chunks for p in c["choices"][0]["delta"].get("tool_calls", ())]
        assert order[:4] == [0, 1, 0, 1]
        assert calls_of(chunks) == [("a", {"x": "long enough"}), ("b", {"raw": "text here"})]


async def test_requests_are_recorded_byte_for_byte(session):
    """Messages are kept as they came, so that prefixes can be compared."""
    async with FakeUpstream() as upstream:
        await ask(session, upstream)
        await ask(
            session, upstream, body([USER, {"role": "assistant", "content": "é"}]), authorization="Bearer k"
        )
        await ask(session, upstream, body([{**USER, "content": "other"}]))
        first, second, third = upstream.requests
        assert second.headers["authorization"] == "Bearer k"
        assert second.messages_raw[1] == '{"role":"assistant","content":"é"}'.encode()
        assert second.extends(first)
        assert not third.extends(first)


async def test_statuses_and_bodies_that_are_no_answers(session):
    """Each fault strikes one request, in the order of injection, and then all is well again."""
    async with FakeUpstream() as upstream:
        upstream.inject(
            Fault(kind=FaultKind.STATUS, status=429, retry_after=3),
            FaultKind.STATUS,
            FaultKind.HTML,
            FaultKind.EMPTY,
            FaultKind.GARBAGE,
            FaultKind.ERROR_IN_200,
            None,
        )
        status, headers, _ = await ask(session, upstream)
        assert (status, headers["Retry-After"]) == (429, "3")
        assert (await ask(session, upstream))[0] == 503
        status, headers, raw = await ask(session, upstream)
        assert (status, raw[:5]) == (200, b"<!doc")
        assert headers["Content-Type"].startswith("text/html")
        assert (await ask(session, upstream))[2] == b""
        with pytest.raises(ValueError):
            json.loads((await ask(session, upstream))[2])
        status, _, raw = await ask(session, upstream)
        assert (status, "error" in json.loads(raw)) == (200, True)
        for _ in range(2):
            assert "choices" in json.loads((await ask(session, upstream))[2])


async def test_a_cut_stream_breaks_the_connection(session):
    """After so many chunks the connection is reset; the reader sees an error, not an end."""
    async with FakeUpstream() as upstream:
        upstream.inject(Fault(kind=FaultKind.CUT_MID_STREAM, after=3))
        with pytest.raises(aiohttp.ClientError):
            await ask(session, upstream, body(stream=True))


async def test_a_stream_that_ends_early_has_no_finish(session):
    """The connection closes as if all were well, but the answer is not whole."""
    async with FakeUpstream() as upstream:
        upstream.inject(Fault(kind=FaultKind.END_EARLY, after=3))
        chunks = SseSplitter().feed((await ask(session, upstream, body(stream=True)))[2])
        assert len(chunks) == 3
        upstream.inject(Fault(kind=FaultKind.ERROR_MID_STREAM, after=1))
        chunks = SseSplitter().feed((await ask(session, upstream, body(stream=True)))[2])
        assert "error" in json.loads(chunks[-1])


async def test_duplicate_chunks(session):
    """Every chunk comes twice."""
    async with FakeUpstream() as upstream:
        upstream.inject(FaultKind.DUPLICATE_CHUNKS)
        chunks = await stream(session, upstream)
        assert chunks[0::2] == chunks[1::2]


@pytest.mark.parametrize("kind", [FaultKind.HANG_BEFORE_HEADERS, FaultKind.HANG_MID_STREAM])
@pytest.mark.parametrize("streamed", [True, False])
async def test_hanging_until_released(session, kind, streamed):
    """A hanging request can be waited for, and let go."""
    async with FakeUpstream() as upstream:
        upstream.inject(kind)
        task = asyncio.ensure_future(ask(session, upstream, body(stream=streamed)))
        await asyncio.wait_for(upstream.until_hanging(), 10)
        assert not task.done()
        upstream.release()
        assert (await task)[0] == 200


async def test_closing_ends_hanging_requests(session):
    """Leaving the context does not wait for those who hang."""
    async with FakeUpstream() as upstream:
        upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        task = asyncio.ensure_future(ask(session, upstream))
        await asyncio.wait_for(upstream.until_hanging(), 10)
    await asyncio.wait([task], timeout=10)
    assert task.done()
    task.exception()


async def test_faults_by_header_and_by_prompt(session):
    """A header strikes its request; a prompt's directive strikes its first attempts only."""
    async with FakeUpstream() as upstream:
        struck = {"x-fake-fault": '{"kind": "status", "status": 500}'}
        assert (await ask(session, upstream, **struck))[0] == 500
        prompt = body([{"role": "user", "content": "hi [[fault:status status=502 times=2]]"}])
        assert [(await ask(session, upstream, prompt))[0] for _ in range(4)] == [502, 502, 200, 200]


async def test_as_a_process_of_its_own(session, tmp_path):
    """It prints its URL, answers by its script, logs to disk and is steered over HTTP."""
    (tmp_path / "script.json").write_text(
        '{"kind": "loop", "model_calls": 2, "per_turn": 1, "faults": [{"kind": "status"}]}'
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-m", "antiphon.testing.fake_upstream",
        "--script", tmp_path / "script.json", "--log", tmp_path / "log.jsonl",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        upstream = FakeUpstream()
        upstream.url = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()
        assert (await ask(session, upstream))[0] == 503
        assert len(calls_of(await stream(session, upstream))) == 1
        async with session.post(upstream.url + "/fake/faults", json=[{"kind": "html"}]) as answer:
            assert await answer.json() == {"queued": 1}
        assert (await ask(session, upstream))[2].startswith(b"<!doc")
        async with session.get(upstream.url + "/fake/requests") as answer:
            assert len(await answer.json()) == 3
        assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 3
    finally:
        process.kill()
        await process.wait()
