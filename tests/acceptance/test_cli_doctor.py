"""`antiphon doctor`: what it finds fine, what it finds wrong, and that it changes nothing."""

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from programs import Program, rehearsal_model, run

TOOLS = '''
from antiphon.tools.function import tool

@tool
def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"
'''


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    with rehearsal_model() as address:
        yield address


def test_all_is_well(tmp_path: Path, model: str):
    """Exit 0; a store that does not exist yet is not made by looking at it."""
    done = run("doctor", model, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "ok    upstream default: answers, with rehearsal" in done.stdout
    assert "ok    clock" in done.stdout
    assert "can be made" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_everything_wrong_is_told_at_once(tmp_path: Path):
    """Exit 1 with one line for each: tools, upstream, store."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    upstream = f"http://127.0.0.1:{port}/v1"
    done = run("doctor", upstream, "--store", "sqlite:///nowhere/x.db", "--tools", "none.py", cwd=tmp_path)
    assert done.returncode == 1
    wrong = [line for line in done.stdout.splitlines() if line.startswith("WRONG")]
    assert [line.split()[1] for line in wrong] == ["tools:", "upstream", "store:"]
    assert "cannot be reached" in done.stdout
    assert "nowhere does not exist" in done.stdout
    assert "3 of these are wrong" in done.stderr


def test_a_broken_configuration_is_a_finding(tmp_path: Path):
    """Not a usage error: that is what the doctor is asked for."""
    (tmp_path / "antiphon.yaml").write_text("stoer: x\n")
    done = run("doctor", cwd=tmp_path)
    assert done.returncode == 1
    assert "WRONG configuration: antiphon.yaml:1: stoer is not a known setting" in done.stdout


def test_no_upstream_is_a_finding(tmp_path: Path):
    """With the ways to name one."""
    done = run("doctor", cwd=tmp_path)
    assert done.returncode == 1
    assert "ANTIPHON_UPSTREAM" in done.stdout


def test_what_is_no_model_server_is_told(tmp_path: Path, model: str):
    """An address that answers, but with no list of models."""
    done = run("doctor", model.removesuffix("/v1") + "/v2", cwd=tmp_path)
    assert done.returncode == 1
    assert "answered 404. Does the address end in /v1?" in done.stdout


def test_a_running_server_is_asked(tmp_path: Path, model: str):
    """The store is locked by it: its own /health and /readyz count, and its lock is no mistake."""
    with Program("serve", model, "--port", "0", cwd=tmp_path) as server:
        port = server.address().rpartition(":")[2]
        done = run("doctor", model, "--port", port, cwd=tmp_path)
        assert done.returncode == 0, done.stdout
        assert f"in use by process {server.pid}" in done.stdout
        assert f"ok    server http://127.0.0.1:{port}: alive, and ready for work" in done.stdout
        elsewhere = run("doctor", model, "--port", "1", cwd=tmp_path)
        assert elsewhere.returncode == 1
        assert "WRONG store" in elsewhere.stdout


@pytest.mark.crash
def test_work_that_nobody_can_go_on_with(tmp_path: Path, model: str):
    """A killed server's response needs a tool: with it the next server goes on, without it nobody can."""
    (tmp_path / "my_tools.py").write_text(TOOLS)
    with (
        Program("serve", model, "--port", "0", "--tools", "my_tools.py", cwd=tmp_path) as server,
        openai.OpenAI(base_url=f"{server.address()}/v1", api_key="none") as client,
    ):
        prompt = "Tell me all. [words=5000] [pace=0.03]"
        made = client.responses.create(model="rehearsal", input=prompt, background=True)
        server.stop(signal.SIGKILL)
    with_tools = run("doctor", model, "--tools", "my_tools.py", cwd=tmp_path)
    assert with_tools.returncode == 0, with_tools.stdout
    assert "note  work: 1 unfinished; the next server goes on with it" in with_tools.stdout
    without = run("doctor", model, cwd=tmp_path)
    assert without.returncode == 1
    assert f"WRONG work: {made.id} needs tool 'refund', which nobody here has." in without.stdout
    with Program("serve", model, "--port", "0", cwd=tmp_path) as server:
        port = server.address().rpartition(":")[2]
        running = run("doctor", model, "--port", port, cwd=tmp_path)
    assert running.returncode == 1
    assert f"WRONG work: {made.id}: the server lacks their model or a tool." in running.stdout
