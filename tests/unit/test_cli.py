"""The command line without a server: versions, usage, exit codes, and what is printed of the configuration."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from antiphon.cli.entry import run


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in (
        "OPENAI_BASE_URL",
        "OPENAI_API_KEY",
        "ANTIPHON_UPSTREAM",
        "ANTIPHON_API_KEY",
        "ANTIPHON_URL",
    ):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_the_version_is_quick():
    """`--version` answers in under 0.15 s: the best of several tries, so that a busy machine does not decide."""
    taken_s = []
    for _ in range(5):
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "antiphon", "--version"], capture_output=True, text=True, check=True
        )
        taken_s.append(time.perf_counter() - began)
    assert done.stdout.startswith("antiphon ")
    assert min(taken_s) < 0.15


def test_the_version_imports_nothing_heavy():
    """Not even the command-line library is imported before `--version` is answered."""
    code = (
        "import sys; sys.argv = ['antiphon', '--version']\n"
        "from antiphon.cli.entry import main; main()\n"
        "print(*sorted({'cyclopts', 'pydantic', 'aiohttp', 'rich', 'msgspec'} & set(sys.modules)), sep=',')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == [""]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serv"], 'Unknown command "serv". Did you mean "serve"?'),
        (["serve", "--prot", "1"], "Unknown option: --prot. Did you mean --port?"),
        (["serve", "--port", "x"], "--port"),
        (["serve", "http://x", "--config", "none.yaml"], "none.yaml: the configuration file cannot be read"),
        (["serve", "http://x", "--tools", "none.py"], "none.py"),
        (["serve", "http://x", "--host", "0.0.0.0"], "--insecure"),
        (["serve", "http://localhost:8080"], "itself"),
        (["serve", "http://x", "--api-key-file", "none"], "--api-key-file none: cannot be read"),
        (["responses", "show"], "RESPONSE_ID"),
        (["responses", "ls", "--url", "nonsense"], "--url nonsense: write an address such as"),
        (["dev", "none.py"], "There is no file none.py."),
    ],
)
def test_a_wrong_command_line_is_explained(capsys, arguments, said):
    """Exit 2, one paragraph on stderr, nothing on stdout, no traceback."""
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("antiphon: ")
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_serving_without_an_upstream_exits_with_3(capsys):
    """And names every way to give one."""
    assert run(["serve"]) == 3
    assert "ANTIPHON_UPSTREAM or OPENAI_BASE_URL" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_a_failure(capsys, unused_port):
    """Exit 1, with where it was looked for and what to do."""
    assert run(["responses", "ls", "--url", f"http://127.0.0.1:{unused_port}"]) == 1
    assert f"No server answers at http://127.0.0.1:{unused_port}" in capsys.readouterr().err


def test_help_lists_the_commands(capsys):
    """Every command with a line of its own."""
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in ("demo", "dev", "serve", "responses", "doctor", "config"):
        assert command in shown


def test_config_shows_values_with_their_origin(capsys, directory, monkeypatch):
    """One line per value; secrets are masked, durations and sizes as people write them."""
    (directory / "antiphon.yaml").write_text(
        'upstreams:\n  a: {url: "http://u:pw@x/v1", api_key: "${env.K}"}\n'
    )
    monkeypatch.setenv("K", "hunter2")
    monkeypatch.setenv("ANTIPHON_DURABILITY__GRACE", "60s")
    assert run(["config", "show", "--origin", "--port", "9", "--tools", "a.py", "--tools", "b"]) == 0
    shown = capsys.readouterr().out
    lines = {line.partition(": ")[0]: line.partition(": ")[2].split("  #") for line in shown.splitlines()}
    shown_and_origin = {name: tuple(part.strip() for part in parts) for name, parts in lines.items()}
    assert shown_and_origin["upstreams.a.api_key"] == ("********", "antiphon.yaml:2 (from K)")
    assert shown_and_origin["upstreams.a.url"] == ("http://********@x/v1", "antiphon.yaml:2")
    assert shown_and_origin["server.port"] == ("9", "--port")
    assert shown_and_origin["durability.grace"] == ("1m", "ANTIPHON_DURABILITY__GRACE")
    assert shown_and_origin["server.max_body"] == ("64MB", "default")
    assert json.loads(shown_and_origin["tools.python"][0]) == ["a.py", "b"]
    assert "hunter2" not in shown
    assert "pw" not in shown


def test_config_without_origins_can_be_read_back(capsys):
    """Plain `key: value` lines."""
    assert run(["config", "show"]) == 0
    assert "limits.running: 256\n" in capsys.readouterr().out
