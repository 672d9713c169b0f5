"""What the tutorial and the README show is run, as shown."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from programs import Program, clean_environment, rehearsal_model

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\S+\.py)\n")
_RUNS_AT_MOST_S = 90


def _blocks(page: str, language: str) -> list[str]:
    return [found["body"] for found in _BLOCK.finditer(page) if found["language"] == language]


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; all are held until all are found, so that they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def _path_with_curl(directory: Path) -> str:
    """PATH with this environment's programs in front, and a small curl behind where the system has none."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    if shutil.which("curl") is not None:
        return path
    stand_in = directory / "bin" / "curl"
    stand_in.parent.mkdir()
    stand_in.write_text(f"#!{sys.executable}\n{Path(__file__).with_name('small_curl.py').read_text()}")
    stand_in.chmod(0o755)
    return f"{path}{os.pathsep}{stand_in.parent}"


def test_the_tutorial_runs_from_top_to_bottom(tmp_path):
    """Each shell block of the tutorial succeeds in its order, the kill -9 included, and says what it shows."""
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    serving, model = _free_ports(2)
    page = page.replace("antiphon serve ", f"antiphon serve --port {serving} ")
    page = page.replace(":8080", f":{serving}").replace("9099", str(model))
    for body in _blocks(page, "python"):
        (tmp_path / _FILE.match(body)[1]).write_text(body)
    script = "set -eu\n" + "".join(_blocks(page, "sh"))
    environment = clean_environment(
        PATH=_path_with_curl(tmp_path), ANTIPHON_URL=f"http://127.0.0.1:{serving}"
    )
    try:
        done = subprocess.run(
            ["sh", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_RUNS_AT_MOST_S,
            check=False,
        )
    finally:
        for name in ("server.pid", "model.pid"):
            _end_if_there(tmp_path / name)
    assert done.returncode == 0, done.stdout + done.stderr
    for said in ("run_taken_over", "the torn words are taken back", "completed at event", "attempt 2"):
        assert said in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "booked.txt").read_text().count("Porto") == 1


def _end_if_there(pid_file: Path) -> None:
    """End a program of the page that a failed line has left behind."""
    try:
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
    except (OSError, ValueError):
        return


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server with the README's tools in front of the rehearsal model: its address, the model's."""
    directory = tmp_path_factory.mktemp("readme")
    tools = next(body for body in _readme("python") if _FILE.match(body))
    (directory / "my_tools.py").write_text(tools)
    with (
        rehearsal_model() as model,
        Program("serve", model, "--tools", "my_tools.py", "--port", "0", cwd=directory) as server,
    ):
        yield server.address(), model


def _readme(language: str) -> list[str]:
    return _blocks((ROOT / "README.md").read_text(encoding="utf-8"), language)


@pytest.mark.parametrize("place", range(len(_readme("python"))))
def test_the_readmes_programs_run(served, tmp_path, place):
    """Each Python program of the README runs to its end as it stands, but for addresses and the model's name."""
    address, model = served
    program = _readme("python")[place].replace("http://localhost:8080", address)
    program = program.replace("http://localhost:11434/v1", model).replace('"qwen3"', '"rehearsal"')
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=_RUNS_AT_MOST_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if not _FILE.match(program):
        assert "rehearsal" in done.stdout or "response.completed" in done.stdout, done.stdout
