"""Every example is run as its reader would run it, against a real server on this machine."""

import asyncio
import contextlib
import os
import re
import sys

import aiohttp
import pytest

from antiphon.testing import FakeUpstream, ScriptedCall, Turn, turns_script
from antiphon.upstream.rehearsal import RehearsalServer
from examples_here import EXAMPLES, example
from serving import judge, judge_response, read_frames

pytestmark = pytest.mark.anyio


async def ran(name, url, cwd, *arguments, deadline_s=60):
    """What an example prints; it must end well and complain about nothing."""
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-W",
        "error",
        EXAMPLES / f"{name}.py",
        *arguments,
        cwd=cwd,
        env={**os.environ, "OPENAI_BASE_URL": url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, errors = await asyncio.wait_for(program.communicate(), deadline_s)
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    assert program.returncode == 0, errors.decode()
    assert errors == b"", errors.decode()
    return out.decode()


@pytest.fixture
async def rehearsal():
    async with RehearsalServer(0.005) as server:
        yield server.url


async def test_every_example_has_its_test():
    """An example that nobody runs is one that does not work."""
    programs = {path.stem for path in EXAMPLES.glob("*.py")}
    assert programs == {
        "agents", "dict_store", "engine_quickstart", "guardrail_loop", "mounted", "own_loop", "resume_stream",
    }  # fmt: skip


async def test_engine_quickstart(rehearsal, tmp_path):
    """Two turns in one file: tools, then a streamed follow-up; a second run finds the file and goes on."""
    for _ in range(2):
        out = await ran("engine_quickstart", rehearsal, tmp_path)
        assert "completed ['mcp_call', 'mcp_call', 'message']" in out
        assert "sunny in Oslo" in out
        assert '"nights":2' in out
        assert "turn 2 of our talk" in out
    assert (tmp_path / "quickstart.db").exists()


async def test_resume_stream(rehearsal, tmp_path):
    """The reader goes on behind its cursor in the second engine, to the end of the response."""
    out = await ran("resume_stream", rehearsal, tmp_path)
    seen = int(re.search(r"the last event seen was number (\d+)", out)[1])
    ended = int(re.search(r"completed after event number (\d+)", out)[1])
    assert ended > seen
    assert "Tell me a story." in out


async def test_own_loop(rehearsal, tmp_path):
    """Cut off between two tools, called again: the first is not run twice, every place is there once."""
    out = await ran("own_loop", rehearsal, tmp_path)
    assert "cut off: the disk is gone; again" in out
    assert out.count("weather of Oslo") + out.count("weather of Rome") == 3
    assert out.count("response.completed") == 1
    assert [line.split() for line in out.splitlines()[-4:]] == [
        ["0", "model_call", "completed"],
        ["1", "tool_call", "completed"],
        ["2", "tool_call", "completed"],
        ["3", "model_call", "completed"],
    ]


async def test_guardrail_loop(rehearsal, tmp_path):
    """What the guardrail objects to is refused, and nothing is transferred."""
    out = await ran("guardrail_loop", rehearsal, tmp_path)
    assert "savings holds 120 EUR" in out
    assert "Refused: Transfers need a human." in out
    assert "sent 50 EUR" not in out
    assert "turn 2 of our talk" in out


async def test_guardrail_loop_with_another_model(tmp_path):
    """The name of the model is an argument, and the key comes from the environment."""
    calls = (ScriptedCall("transfer", {"amount": 1, "to": "Eve"}),)
    async with FakeUpstream(turns_script([Turn(calls=calls), Turn(text="So be it.")])) as upstream:
        out = await ran("guardrail_loop", upstream.url + "/v1", tmp_path, "some-model")
        assert {request.body["model"] for request in upstream.requests} == {"some-model"}
    assert out.count("So be it.") == 2


async def test_agents(rehearsal, tmp_path):
    """The clerk reads the tenant's stock in a scope of its own."""
    out = await ran("agents", rehearsal, tmp_path)
    assert '{"article":"lamp","count":7}' in out
    steps = [line for line in out.splitlines() if line.endswith(" completed") and "call" in line.split()[0]]
    assert steps == [
        "model_call completed",
        "tool_call completed",
        "  model_call completed",
        "  tool_call completed",
        "  model_call completed",
        "model_call completed",
    ]


async def test_mounted(rehearsal, tmp_path):
    """Started as its first lines say, it serves the application's page and the wire under its prefix."""
    async with _uvicorn("mounted:app", rehearsal, tmp_path) as url, aiohttp.ClientSession(url) as session:
        async with session.get("/") as answer:
            assert await answer.text() == "The rest of the application."
        body = {"model": "rehearsal", "input": 'Use weather(city="Oslo").'}
        async with session.post("/ai/v1/responses", json=body) as answer:
            assert answer.status == 200
            response = judge_response(await answer.json())
        assert response["output"][0]["output"] == "sunny in Oslo"
        async with session.post("/ai/v1/responses", json={**body, "stream": True}) as answer:
            raw = await answer.read()
        assert judge(read_frames(raw.removesuffix(b"data: [DONE]\n\n")))[-1]["type"] == "response.completed"


@contextlib.asynccontextmanager
async def _uvicorn(app, base_url, cwd):
    """A program of its own, as a reader starts it; gives its address."""
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "uvicorn", "--app-dir", EXAMPLES, app, "--port", "0"),
        cwd=cwd,
        env={**os.environ, "OPENAI_BASE_URL": base_url, "STORE": f"sqlite:///{cwd / 'mounted.db'}"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(30):
            async for line in server.stderr:
                if found := re.search(rb"running on (http://[\d.:]+)", line):
                    break
            else:
                raise AssertionError("the application did not start")
        yield found[1].decode()
        server.terminate()
        _, errors = await asyncio.wait_for(server.communicate(), 30)
        assert b"Application shutdown complete" in errors, errors.decode()
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()


def test_the_dict_store_is_as_small_as_it_says():
    """Sixty lines are all that a store needs; the docs show them."""
    lines = (EXAMPLES / "dict_store.py").read_text(encoding="utf-8").splitlines()
    begins = next(at for at, line in enumerate(lines) if line.startswith("class DictStore"))
    assert len(lines) - begins <= 60
    assert example("dict_store").DictStore.__doc__
