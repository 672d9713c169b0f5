"""What is logged, and to whom: nothing without being asked, and never a local variable."""

import asyncio
import logging
import subprocess
import sys

import pytest

from antiphon.cli.logs import configure_logs
from antiphon.cli.settings import LogSettings
from antiphon.domain.errors import ToolExecutionError
from antiphon.domain.tools import RequestContext
from antiphon.observe.logs import get_logger
from antiphon.tools.function import FunctionToolExecutor, tool

FAILING = """
import asyncio
from antiphon import FunctionToolExecutor, RequestContext, ToolError, tool

@tool
def leak() -> str:
    secret = "sk-local-variable"
    raise ValueError("it broke")

async def main():
    try:
        await FunctionToolExecutor([leak]).execute("leak", "key", {}, RequestContext())
    except ToolError:
        print("failed")

asyncio.run(main())
"""


def test_a_library_is_silent():
    """Without any configuration of `logging` nothing is printed, not even for a failing tool."""
    done = subprocess.run(
        [sys.executable, "-c", FAILING], capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("failed\n", "")


@pytest.fixture
def own_logging():
    """The process's logging is put back afterwards."""
    root = logging.getLogger()
    kept, level = root.handlers, root.level
    yield
    root.handlers = kept
    root.setLevel(level)


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_never_shows_local_variables(capsys, own_logging, form):
    """A failing tool's traceback is in the server's log, its secrets are not."""
    configure_logs(LogSettings(format=form))

    @tool
    def leak() -> str:
        secret = "sk-local-" + "variable"
        raise ValueError("it broke" if secret else "")

    with pytest.raises(ToolExecutionError):
        asyncio.run(FunctionToolExecutor([leak]).execute("leak", "key", {}, RequestContext()))
    written = capsys.readouterr().err
    assert "it broke" in written
    assert "tool_failed" in written
    assert "sk-local-variable" not in written


def test_fields_are_part_of_the_line(capsys, own_logging):
    """The event and its fields stand in one JSON object."""
    configure_logs(LogSettings(format="json"))
    get_logger("antiphon.trial").info("something_happened", response_id="resp_1", took_s=0.5)
    written = capsys.readouterr().err
    assert '"response_id": "resp_1"' in written
    assert '"event": "something_happened"' in written
