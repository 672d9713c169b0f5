"""`antiphon responses` against a running server."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from programs import ANTIPHON, ENDS_WITHIN_S, Program, clean_environment, rehearsal_model, run

TOOLS = '''
from antiphon.tools.function import tool

@tool(effect="idempotent")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b
'''

LONG = "Tell me more. [words=100] [pace=0.03]"
ENDLESS = "Tell me all. [words=5000] [pace=0.03]"


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    with rehearsal_model() as address:
        yield address


class Served:
    """A server with tools, its address, and a client of it."""

    def __init__(self, directory: Path, model: str) -> None:
        self.directory = directory
        self.model = model
        self.url = ""
        (directory / "my_tools.py").write_text(TOOLS)

    def start(self) -> Program:
        """Start it, on the same port as before."""
        port = self.url.rpartition(":")[2] or "0"
        server = Program("serve", self.model, "--port", port, "--tools", "my_tools.py", cwd=self.directory)
        self.url = server.address()
        return server

    def create(self, prompt: str, **options: object) -> str:
        """The id of a new response."""
        with openai.OpenAI(base_url=f"{self.url}/v1", api_key="none") as client:
            return client.responses.create(model="rehearsal", input=prompt, **options).id

    def responses(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One `antiphon responses` command."""
        return run("responses", *arguments, cwd=self.directory, ANTIPHON_URL=self.url)


@pytest.fixture
def served(tmp_path: Path, model: str) -> Iterator[Served]:
    """A server of its own for the test."""
    place = Served(tmp_path, model)
    with place.start():
        yield place


def test_list_and_show(served: Served):
    """Newest first; any prefix of an id will do; the tree names each step with its effect and result."""
    assert served.responses("ls").stdout == "No responses yet.\n"
    first = served.create("hello")
    second = served.create("add(a=19, b=23)")
    listed = served.responses("ls").stdout.splitlines()
    assert [line.split()[:3] for line in listed[1:]] == [
        [second, "completed", "rehearsal"],
        [first, "completed", "rehearsal"],
    ]
    assert [each["id"] for each in json.loads(served.responses("ls", "-o", "json").stdout)["data"]] == [
        second,
        first,
    ]
    for name in (second, second.removeprefix("resp_"), second[:-4], second.removeprefix("resp_")[:-4]):
        shown = served.responses("show", name)
        assert shown.returncode == 0
        assert shown.stdout.startswith(second)
    assert "add(a=19, b=23)  idempotent  completed" in shown.stdout
    assert "→ 42" in shown.stdout
    assert shown.stdout.count("model  rehearsal  completed") == 2
    both = json.loads(served.responses("show", second, "-o", "json").stdout)
    assert both["response"]["id"] == second
    assert [step["kind"] for step in both["steps"]] == ["model_call", "tool_call", "model_call"]


def test_prefixes_that_do_not_decide(served: Served):
    """Several: exit 2 and the candidates. None: exit 1 and how to list them."""
    ids = [served.create("one"), served.create("two")]
    several = served.responses("show", "resp_")
    assert several.returncode == 2
    assert all(each in several.stderr for each in ids)
    none = served.responses("show", "resp_zzz")
    assert none.returncode == 1
    assert "antiphon responses ls" in none.stderr


def test_tail_follows_to_the_end(served: Served):
    """Words as they come, exit 0; as JSON every event with its number; `--after` begins in the middle."""
    made = served.create(LONG, background=True)
    tailed = served.responses("tail", made)
    assert tailed.returncode == 0
    assert tailed.stdout.startswith("[rehearsal]")
    events = [json.loads(line) for line in served.responses("tail", made, "-o", "json").stdout.splitlines()]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    later = served.responses("tail", made, "-o", "json", "--after", "9").stdout.splitlines()
    assert [json.loads(line) for line in later] == events[10:]


def test_cancel_and_tail_of_what_was_cancelled(served: Served):
    """A cancelled response says so, its tail exits 1, and a second cancel changes nothing."""
    made = served.create(ENDLESS, background=True)
    for _ in range(2):
        cancelled = served.responses("cancel", made)
        assert (cancelled.returncode, cancelled.stdout) == (0, f"{made} cancelled\n")
    tailed = served.responses("tail", made)
    assert tailed.returncode == 1
    assert tailed.stderr == f"antiphon: {made} ended cancelled.\n"


@pytest.mark.crash
def test_tail_outlives_the_server(tmp_path: Path, model: str):
    """A SIGKILL of the server and a new one on its store: the same `tail` prints the rest and exits 0."""
    place = Served(tmp_path, model)
    with place.start() as server:
        made = place.create(LONG, background=True)
        tail = subprocess.Popen(
            [*ANTIPHON, "responses", "tail", made, "-o", "json", "--url", place.url],
            env=clean_environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            seen = [json.loads(tail.stdout.readline()) for _ in range(20)]
            assert server.stop(signal.SIGKILL) == -signal.SIGKILL
            with place.start():
                rest = [json.loads(line) for line in tail.stdout.read().splitlines()]
                assert tail.wait(ENDS_WITHIN_S) == 0
        finally:
            tail.kill()
            tail.stdout.close()
            tail.wait(ENDS_WITHIN_S)
    numbers = [event["sequence_number"] for event in (*seen, *rest)]
    assert numbers == sorted(set(numbers))
    assert rest[-1]["type"] == "response.completed"
    assert rest[-1]["response"]["id"] == made


def test_keys_are_sent(tmp_path: Path, model: str):
    """By flag or variable; without one the refusal names both."""
    with Program(
        "serve", model, "--port", "0", "--store", "memory:", cwd=tmp_path, ANTIPHON_API_KEY="k"
    ) as server:
        url = server.address()
        refused = run("responses", "ls", "--url", url, cwd=tmp_path)
        assert refused.returncode == 1
        assert "--api-key or ANTIPHON_API_KEY" in refused.stderr
        assert run("responses", "ls", "--url", f"{url}/v1/", "--api-key", "k", cwd=tmp_path).returncode == 0
        assert run("responses", "ls", cwd=tmp_path, ANTIPHON_URL=url, ANTIPHON_API_KEY="k").returncode == 0


def test_what_is_not_an_antiphon_server_is_told(tmp_path: Path, model: str):
    """A model server answers, but not as one of ours."""
    done = run("responses", "ls", "--url", model, cwd=tmp_path)
    assert done.returncode == 1
    assert "is it an Antiphon server?" in done.stderr
