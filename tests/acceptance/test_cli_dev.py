"""`antiphon dev`: finds or plays a model, and starts again on every change without losing work."""

import asyncio
import json
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import openai
import pytest

from antiphon.cli.detection import find_local_server
from programs import Program, rehearsal_model, run

TOOLS = '''
from antiphon.tools.function import tool

@tool(effect="pure")
def {name}(a: int) -> str:
    """Do something with a number."""
    return f"{name} did {{a}}"
'''


@pytest.fixture
def port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


def called(url: str, tool: str) -> list[str]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        response = client.responses.create(model="rehearsal", input=f"{tool}(a=3)")
    return [item.output for item in response.output if item.type == "mcp_call"]


@pytest.fixture(scope="module")
def configured_model() -> Iterator[str]:
    with rehearsal_model(pace_s=0.03) as address:
        yield address


def test_a_change_starts_it_again_and_work_goes_on(tmp_path: Path, configured_model: str, port: str):
    """Another tool appears in the file: the server has it, and the answer under way is finished."""
    (tmp_path / "my_tools.py").write_text(TOOLS.format(name="first"))
    (tmp_path / "antiphon.yaml").write_text(f'upstreams: {{m: {{url: "{configured_model}"}}}}\n')
    with Program("dev", "my_tools.py", "--port", port, cwd=tmp_path) as dev:
        url = dev.address()
        assert called(url, "first") == ["first did 3"]
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            made = client.responses.create(
                model="rehearsal", input="Tell me more. [words=100]", background=True
            )
            (tmp_path / "my_tools.py").write_text(TOOLS.format(name="first") + TOOLS.format(name="second"))
            dev.wait_for("my_tools.py changed; starting again")
            assert dev.address() == url
        assert run("responses", "tail", made.id, "--url", url, cwd=tmp_path).returncode == 0
        assert called(url, "second") == ["second did 3"]
        assert dev.stop(signal.SIGINT) == 0


def test_a_broken_file_is_waited_for(tmp_path: Path, configured_model: str, port: str):
    """A mistake in the tools ends the server, not `dev`: it starts again when the file is right."""
    (tmp_path / "my_tools.py").write_text("this is not Python\n")
    (tmp_path / "antiphon.yaml").write_text(f'upstreams: {{m: {{url: "{configured_model}"}}}}\n')
    with Program("dev", "my_tools.py", "--port", port, cwd=tmp_path) as dev:
        assert "my_tools.py:1" in dev.wait_for("cannot be imported")
        dev.wait_for("waiting for a file to change")
        (tmp_path / "my_tools.py").write_text(TOOLS.format(name="first"))
        assert called(dev.address(), "first") == ["first did 3"]
        assert dev.stop(signal.SIGTERM) == 0


class _ModelServer(BaseHTTPRequestHandler):
    body = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def answering() -> Iterator:
    """Start HTTP servers that answer every GET with the same JSON; gives their ports."""
    servers = []

    def start(value: object) -> int:
        handler = type("Handler", (_ModelServer,), {"body": json.dumps(value).encode()})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server.server_port

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_local_servers_are_found_in_order(answering, port):
    """The first of the usual ports that answers with a list of models; everything else is passed over."""
    models = {"object": "list", "data": [{"id": "qwen3"}, {"id": "llama"}]}
    ours = {"object": "list", "data": [{"id": "rehearsal", "owned_by": "antiphon"}]}
    good, other, antiphon = answering(models), answering(models), answering(ours)
    strange, empty = answering({"hello": "world"}), answering({"data": []})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ports = [(int(port), "gone"), (silent.getsockname()[1], "silent"), (strange, "strange"), (empty, "empty"),
                 (antiphon, "antiphon"),
                 (good, "good"), (other, "other")]  # fmt: skip
        found = asyncio.run(find_local_server(except_port=0, ports=ports))
        assert (found.name, found.url, found.models) == (
            "good",
            f"http://127.0.0.1:{good}/v1",
            ("qwen3", "llama"),
        )
        found = asyncio.run(find_local_server(except_port=good, ports=ports))
        assert found.name == "other", "the port that we listen on ourselves is not asked"
        assert asyncio.run(find_local_server(except_port=0, ports=ports[:5])) is None


def test_without_a_model_the_rehearsal_is_played(tmp_path: Path, port: str, monkeypatch: pytest.MonkeyPatch):
    """It says plainly that no language model answers, and it works."""
    taken = [usual for usual in (11434, 8000, 8080, 1234) if _listens(usual)]
    if taken:
        pytest.skip(f"a server listens on {taken}")
    with Program("dev", "--port", port, cwd=tmp_path) as dev:
        assert "only plays a model" in dev.wait_for("rehearsal model")
        url = dev.address()
        with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as answer:  # noqa: S310 - loopback
            assert [model["id"] for model in json.load(answer)["data"]] == ["rehearsal"]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.3)
        return probe.connect_ex(("127.0.0.1", port)) == 0
