"""`antiphon serve`, as a process: how it starts, what it says, whom it lets in, how it ends."""

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from programs import ANTIPHON, Program, clean_environment, rehearsal_model, run

TOOLS = '''
from antiphon.tools.function import tool

@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

@tool
def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"
'''


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    with rehearsal_model() as address:
        yield address


def get(url: str, key: str | None = None) -> tuple[int, dict]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_it_says_where_it_is_and_what_it_uses(tmp_path: Path, model: str):
    """A free port, a table with store, upstream, models and tools with their effects, and a first request."""
    (tmp_path / "my_tools.py").write_text(TOOLS)
    with Program("serve", model, "--port", "0", "--tools", "my_tools.py", cwd=tmp_path) as server:
        address = server.address()
        assert address.startswith("http://127.0.0.1:")
        assert not address.endswith(":0")
        server.wait_for("print(client")
        shown = "\n".join(server.lines)
        for said in (
            f"{address}/v1",
            "sqlite:///antiphon.db",
            model,
            "rehearsal",
            "add  pure",
            "refund  once",
        ):
            assert said in shown, said
        assert f"curl -N {address}/v1/responses" in shown
        assert f'base_url="{address}/v1"' in shown
        assert get(f"{address}/health") == (200, {"status": "ok"})
    assert (tmp_path / "antiphon.db").exists()


def test_the_official_client_gets_an_answer_with_tools(tmp_path: Path, model: str):
    """Tools from a file in the working directory are run for a client that knows nothing of them."""
    (tmp_path / "my_tools.py").write_text(TOOLS)
    with (
        Program(
            "serve", model, "--port", "0", "--store", "memory:", "--tools", "my_tools.py", cwd=tmp_path
        ) as server,
        openai.OpenAI(base_url=f"{server.address()}/v1", api_key="none") as client,
    ):
        response = client.responses.create(model="rehearsal", input="add(a=19, b=23)")
    assert response.status == "completed"
    assert "42" in response.output_text


def test_a_route_names_its_model_and_its_tools(tmp_path: Path, model: str):
    """An alias sends the upstream's own model name, and its requests get only the tools that it lists."""
    (tmp_path / "my_tools.py").write_text(TOOLS)
    (tmp_path / "antiphon.yaml").write_text(
        "upstreams: {local: {url: '${env.MODEL}'}}\n"
        "models: {sums: {upstream: local, model: rehearsal, tools: [add]}}\n"
        "tools: {python: [my_tools]}\n"
        "store: 'memory:'\n"
        "server: {port: 0}\n"
    )
    with (
        Program("serve", cwd=tmp_path, MODEL=model) as server,
        openai.OpenAI(base_url=f"{server.address()}/v1", api_key="none", max_retries=0) as client,
    ):
        ours = client.responses.create(model="sums", input="add(a=1, b=2) and refund(order='7')")
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="rehearsal", input="hello")
    assert [item.name for item in ours.output if item.type == "mcp_call"] == ["add"]
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_well(tmp_path: Path, model: str, number: int):
    """Exit code 0, and the store is free for the next process."""
    for _ in range(2):
        with Program("serve", model, "--port", "0", cwd=tmp_path) as server:
            server.address()
            assert server.stop(number) == 0


LISTENING_FOR_IT = """
import os, sys
os.environ["LISTEN_PID"] = str(os.getpid())
os.environ["LISTEN_FDS"] = "1"
os.dup2(int(sys.argv[1]), 3)
os.execv(sys.executable, [sys.executable, "-m", "antiphon", *sys.argv[2:]])
"""


def test_a_socket_of_the_service_manager_is_taken(tmp_path: Path, model: str):
    """Socket activation: what a client asks while no server runs is answered by the next one."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        early = socket.create_connection(door.getsockname(), timeout=30)
        early.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        command = [sys.executable, "-c", LISTENING_FOR_IT, str(door.fileno()), "serve", model]
        server = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=clean_environment(),
            pass_fds=[door.fileno()],
            stdout=subprocess.DEVNULL,
        )
        try:
            with early:
                assert early.recv(15) == b"HTTP/1.1 200 OK"
        finally:
            server.terminate()
            assert server.wait(30) == 0


def test_the_log_is_json_where_nobody_watches(tmp_path: Path, model: str):
    """One JSON object per line on stderr, from the level on that was asked for."""
    process = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environ = clean_environment(ANTIPHON_LOG__LEVEL="info")
    server = subprocess.Popen(
        [*ANTIPHON, "serve", model, "--port", "0"], cwd=tmp_path, env=environ, **process
    )
    try:
        address = server.stdout.readline().removeprefix("listening on ").strip()
        with openai.OpenAI(base_url=f"{address}/v1", api_key="none") as client:
            made = client.responses.create(model="rehearsal", input="hello")
        server.terminate()
        _, log = server.communicate(timeout=20)
    finally:
        server.kill()
        server.wait(20)
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["response_id"] for line in lines if line["event"] == "response_ended"] == [made.id]


def test_a_busy_port_is_told(tmp_path: Path, model: str):
    """Exit 1, with the port and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run("serve", model, "--port", port, cwd=tmp_path)
    assert done.returncode == 1
    assert f"Port {port} on 127.0.0.1 is in use" in done.stderr
    assert "--port" in done.stderr
    assert done.stdout == ""


def test_a_store_in_use_is_told(tmp_path: Path, model: str):
    """Exit 1, with the process that has it."""
    with Program("serve", model, "--port", "0", cwd=tmp_path) as server:
        server.address()
        done = run("serve", model, "--port", "0", cwd=tmp_path)
    assert done.returncode == 1
    assert f"in use by process {server.pid}" in done.stderr
    assert done.stdout == ""


def test_tools_that_cannot_be_loaded_are_told(tmp_path: Path, model: str):
    """Exit 2, with file and line, before anything is opened."""
    (tmp_path / "broken.py").write_text("\nimport nowhere_to_be_found\n")
    done = run("serve", model, "--tools", "broken.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "broken.py:2" in done.stderr
    assert "nowhere_to_be_found" in done.stderr
    assert not (tmp_path / "antiphon.db").exists()


def test_two_tools_of_one_name_are_told(tmp_path: Path, model: str):
    """Which files, and how to give one of them another name."""
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(TOOLS)
    done = run("serve", model, "--tools", "one.py", "--tools", "two.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "one.py and two.py both define a tool 'add'" in done.stderr


def test_a_route_to_a_tool_that_is_not_there_is_told(tmp_path: Path):
    """With the tools that there are."""
    (tmp_path / "my_tools.py").write_text(TOOLS)
    (tmp_path / "antiphon.yaml").write_text(
        "upstreams: {a: {url: 'http://x/v1'}}\nmodels:\n  m: {upstream: a, tools: [ad]}\ntools: {python: my_tools.py}\n"
    )
    done = run("serve", cwd=tmp_path)
    assert done.returncode == 2
    assert "antiphon.yaml:3: models.m.tools: there is no tool 'ad'; there is add, refund." in done.stderr


def test_keys_are_asked_for(tmp_path: Path, model: str):
    """With a key file only its keys are let in, on every interface, and no key is printed."""
    (tmp_path / "keys").write_text("alpha-secret\nbeta-secret\n")
    arguments = (
        "serve",
        model,
        "--port",
        "0",
        "--store",
        "memory:",
        "--host",
        "0.0.0.0",
        "--api-key-file",
        "keys",
    )
    with Program(*arguments, cwd=tmp_path) as server:
        address = server.address()
        assert get(f"{address}/v1/models")[0] == 401
        assert get(f"{address}/v1/models", "wrong")[0] == 401
        assert get(f"{address}/v1/models", "beta-secret")[0] == 200
        server.wait_for("print(client")
    assert "secret" not in "\n".join(server.lines)


def test_a_model_that_does_not_answer_yet_is_no_reason_not_to_start(tmp_path: Path):
    """Model servers may come up later; the table says that nothing has answered."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Program(
        "serve", f"http://127.0.0.1:{port}/v1", "--port", "0", "--store", "memory:", cwd=tmp_path
    ) as server:
        server.address()
        server.wait_for("no upstream has answered yet")
