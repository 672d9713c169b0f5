"""What `commit` has returned survives SIGKILL."""

import asyncio
import contextlib
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.store.sqlite.store import SqliteStore

WRITER = """
import asyncio, sys
from antiphon.domain.steps import CreateStepInput, StepKind, StepState
from antiphon.store.sqlite.store import SqliteStore
from antiphon.testing.store_conformance.story import Story, item

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    number = 0
    while True:
        stories = [Story(at_s=number + n) for n in range(8)]
        number += 8
        group = [s.admitted(new_steps=(s.step(0, StepState.PROCESSING),), windows=(s.window(3),)) for s in stories]
        assert await store.commit(group) == [None] * 8
        ends = [s.ended(item("out"), changed_steps=(s.step(0, StepState.COMPLETED),)) for s in stories]
        assert await store.commit(ends) == [None] * 8
        fenced = await store.create_step(CreateStepInput(
            request_id="alone", ordinal=number, step_kind=StepKind.MODEL_CALL, step_sequence=number, request_payload=number))
        print(fenced, *(s.response_id for s in stories), flush=True)

asyncio.run(main())
"""


@pytest.mark.anyio
@pytest.mark.parametrize("acknowledged", [1, 7, 40])
async def test_what_was_acknowledged_survives_a_kill(tmp_path, acknowledged):
    """After SIGKILL in mid-write every acknowledged commit is there whole, and the file is sound."""
    path = tmp_path / "store.db"
    told = await asyncio.to_thread(_write_and_kill, path, acknowledged)
    store = SqliteStore(path)
    await store.open()
    try:
        for step_id, *response_ids in told:
            assert await store.get_step(step_id) is not None
            for response_id in response_ids:
                response = await store.read_response("default", response_id)
                assert response is not None
                assert response.status == "completed"
                assert len(response.output) == 1
                assert [window.last for window in await store.events(response_id, -1)] == [2]
                steps = await store.list_steps(response.run_id)
                assert [step.state for step in steps] == ["completed"]
        for run in await store.take_over("next"):
            assert len(await store.list_steps(run.run_id)) == 1
    finally:
        await store.close()
    assert _integrity(path) == "ok"


def _write_and_kill(path: Path, acknowledged: int) -> list[list[str]]:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        lines = [writer.stdout.readline().split() for _ in range(acknowledged)]
    finally:
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read()
        writer.stdout.close()
        assert writer.wait(timeout=30) == -signal.SIGKILL
    return lines + [line.split() for line in rest.splitlines(keepends=True) if line.endswith("\n")]


def _integrity(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchone()[0]
