"""The journal as a dead process left it: read from a copy of its SQLite files.

A copy, because opening the files themselves would mend them before the next server gets the chance to.
Nothing may write while a snapshot is taken: the process is dead, or idle.
"""

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from antiphon.core.sse import SseSplitter
from antiphon.domain.steps import StepKind, StepState

JSONObject = dict[str, Any]

_RUNS = (
    "SELECT run_id, response_id, state, mode, fence, owner, takeovers, next_sequence_number FROM runs"
    " WHERE :response_id IS NULL OR response_id = :response_id"
)
_STEPS = (
    "SELECT id, request_id, parent_step_id, ordinal, step_kind, state, retry_attempt, request_payload,"
    " response_payload, error FROM steps WHERE request_id = ? ORDER BY step_sequence"
)
_EVENTS = "SELECT first, last, step_id, frames FROM events WHERE response_id = ? ORDER BY last"


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One step's row. `result` is what it ended with, response or error, as bytes."""

    id: str
    run_id: str
    parent: str | None
    ordinal: int
    kind: StepKind
    state: StepState
    attempt: int
    request: JSONObject
    response: JSONObject | None
    error: JSONObject | None
    result: bytes | None

    @property
    def effect(self) -> str | None:
        """The effect class of a tool call; None for a model call."""
        return None if self.kind is StepKind.MODEL_CALL else str(self.request.get("effect"))


class EventRecord(msgspec.Struct, frozen=True):
    """One event of the log, and the step whose attempt it tells of."""

    event: JSONObject
    step_id: str | None


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run: its row, its steps, its log by sequence number."""

    run_id: str
    response_id: str
    state: str
    mode: str
    fence: int
    owner: str | None
    takeovers: int
    next_sequence_number: int
    steps: tuple[StepRecord, ...]
    log: dict[int, EventRecord]

    def processing(self, kind: StepKind) -> list[StepRecord]:
        """The steps of a kind that were in flight."""
        return [step for step in self.steps if step.kind is kind and step.state is StepState.PROCESSING]


class Snapshot(msgspec.Struct, frozen=True):
    """The runs that were asked for, by response id."""

    runs: dict[str, RunRecord]


def take_snapshot(database: Path, response_id: str | None = None) -> Snapshot:
    """All runs in the file, or the one of a response; none when there is no such file or run yet."""
    with _copy_of(database) as copy, closing(sqlite3.connect(copy)) as connection:
        connection.row_factory = sqlite3.Row
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'events'").fetchone() is None:
            return Snapshot({})
        rows = connection.execute(_RUNS, {"response_id": response_id}).fetchall()
        return Snapshot({row["response_id"]: _run(connection, row) for row in rows})


@contextmanager
def _copy_of(database: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="antiphon-snapshot-") as directory:
        copy = Path(directory) / database.name
        for suffix in ("", "-wal"):
            source = database.with_name(database.name + suffix)
            if source.exists():
                shutil.copyfile(source, copy.with_name(copy.name + suffix))
        yield copy


def _run(connection: sqlite3.Connection, row: sqlite3.Row) -> RunRecord:
    steps = connection.execute(_STEPS, (row["run_id"],)).fetchall()
    windows = connection.execute(_EVENTS, (row["response_id"],)).fetchall()
    log: dict[int, EventRecord] = {}
    for window in windows:
        for number, event in _events_in(window):
            if number in log:
                message = f"the log holds two events with the number {number}"
                raise ValueError(message)
            log[number] = EventRecord(event, window["step_id"])
    return RunRecord(
        run_id=row["run_id"],
        response_id=row["response_id"],
        state=row["state"],
        mode=row["mode"],
        fence=row["fence"],
        owner=row["owner"],
        takeovers=row["takeovers"],
        next_sequence_number=row["next_sequence_number"],
        steps=tuple(_step(step) for step in steps),
        log=log,
    )


def _events_in(window: sqlite3.Row) -> Iterator[tuple[int, JSONObject]]:
    """The events of a window; a window whose numbers are not those of its events is damage."""
    events = [msgspec.json.decode(data) for data in SseSplitter().feed(window["frames"])]
    numbers = [event["sequence_number"] for event in events]
    if numbers != list(range(window["first"], window["last"] + 1)):
        message = f"the window {window['first']}..{window['last']} holds the events {numbers}"
        raise ValueError(message)
    return zip(numbers, events, strict=True)


def _step(row: sqlite3.Row) -> StepRecord:
    return StepRecord(
        id=row["id"],
        run_id=row["request_id"],
        parent=row["parent_step_id"],
        ordinal=row["ordinal"],
        kind=StepKind(row["step_kind"]),
        state=StepState(row["state"]),
        attempt=row["retry_attempt"],
        request=msgspec.json.decode(row["request_payload"]),
        response=None if row["response_payload"] is None else msgspec.json.decode(row["response_payload"]),
        error=None if row["error"] is None else msgspec.json.decode(row["error"]),
        result=row["response_payload"] or row["error"],
    )
