"""Reads: each a function of a connection, inside one read transaction.

Rows become the values of the protocol here and nowhere else.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.json import Decoder, encode

from antiphon.domain.steps import StepKind, StepState
from antiphon.store.protocol import (
    EventWindow,
    History,
    Order,
    Page,
    ResponsePage,
    StepRow,
    StoredItem,
    StoredResponse,
    StoredRun,
)
from antiphon.store.sqlite.statements import SQL

_BEFORE_ALL = float("-inf")
_AFTER_ALL = float("inf")
_HIGHEST_POSITION = 2**62
_FEW_SECONDS = 7200
_ABOVE_ANY = "\U0010ffff"
_KINDS = {kind.value: kind for kind in StepKind}
_STATES = {state.value: state for state in StepState}
_decode_names = Decoder(tuple[str, ...]).decode


def step_by_id(connection: sqlite3.Connection, step_id: str) -> StepRow | None:
    """The step, or None."""
    row = connection.execute(SQL["step_by_id"], (step_id,)).fetchone()
    return None if row is None else _step(row)


def steps_of_run(connection: sqlite3.Connection, run_id: str) -> list[StepRow]:
    """All steps of a run, by sequence."""
    return [_step(row) for row in connection.execute(SQL["steps_of_run"], (run_id,)).fetchall()]


def steps_of_scope(connection: sqlite3.Connection, run_id: str, parent: str | None) -> list[StepRow]:
    """The steps of one scope, by sequence."""
    return [_step(row) for row in connection.execute(SQL["steps_of_scope"], (run_id, parent)).fetchall()]


def run_by_id(connection: sqlite3.Connection, run_id: str) -> StoredRun | None:
    """The run's row, or None."""
    row = connection.execute(SQL["run_by_id"], (run_id,)).fetchone()
    return None if row is None else _run(row)


def open_runs(connection: sqlite3.Connection) -> list[StoredRun]:
    """Every run that has not ended, oldest first."""
    return [_run(row) for row in connection.execute(SQL["open_runs"]).fetchall()]


def runs_by_digest(
    connection: sqlite3.Connection, project: str, digest: str, since: float
) -> list[StoredRun]:
    """Runs admitted with this body since then, newest first."""
    (newest,) = connection.execute(SQL["newest_second"]).fetchone()
    if newest is None or newest < int(since):
        return []
    name = "runs_by_digest_lately" if newest - since < _FEW_SECONDS else "runs_by_digest_ever"
    values = {"project": project, "body_digest": digest, "since": since, "newest": newest}
    return [_run(row) for row in connection.execute(SQL[name], values).fetchall()]


def holder_of_key(connection: sqlite3.Connection, project: str, key: str) -> tuple[str, str] | None:
    """Who used this idempotency key, and with which body."""
    holder: tuple[str, str] | None = connection.execute(SQL["holder_of_key"], (project, key)).fetchone()
    return holder


def response_by_id(connection: sqlite3.Connection, project: str, response_id: str) -> StoredResponse | None:
    """The response with its output, or None."""
    row = connection.execute(SQL["response_by_id"], (project, response_id)).fetchone()
    if row is None:
        return None
    output = connection.execute(SQL["output_of_response"], (response_id,)).fetchall()
    return _response(row, _items(output))


def responses(
    connection: sqlite3.Connection,
    project: str,
    *,
    limit: int,
    after: str | None,
    order: Order,
    status: str | None,
    prefix: str | None,
) -> ResponsePage:
    """A page of responses by creation; empty when `after` is unknown."""
    created_at, after_id = (_AFTER_ALL, _ABOVE_ANY) if order == "desc" else (_BEFORE_ALL, "")
    if after is not None:
        place = connection.execute(SQL["place_of_response"], (project, after)).fetchone()
        if place is None:
            return ResponsePage((), has_more=False)
        created_at, after_id = place[0], after
    values: dict[str, Any] = {
        "project": project,
        "created_at": created_at,
        "response_id": after_id,
        "status": status,
        "limit": limit + 1,
    }
    end = "newest_first" if order == "desc" else "oldest_first"
    if prefix:
        statement = SQL[f"responses_with_prefix_{end}"]
        values |= {
            "low": prefix,
            "high": prefix + _ABOVE_ANY,
            "named_low": f"resp_{prefix}",
            "named_high": f"resp_{prefix}{_ABOVE_ANY}",
        }
    else:
        statement = SQL[f"responses_{end}"]
    rows = connection.execute(statement, values).fetchall()
    return ResponsePage(tuple(_response(row, ()) for row in rows[:limit]), has_more=len(rows) > limit)


def history(connection: sqlite3.Connection, project: str, response_id: str) -> History | None:
    """The last turn's row, and the items of all turns as one query."""
    last = response_by_id(connection, project, response_id)
    if last is None:
        return None
    rows = connection.execute(SQL["history"], {"project": project, "response_id": response_id}).fetchall()
    return History(last, _items(rows))


def input_items(
    connection: sqlite3.Connection,
    project: str,
    response_id: str,
    *,
    limit: int,
    after: str | None,
    order: Order,
) -> Page | None:
    """A page of a response's input; empty when `after` is unknown, None when the response is."""
    if connection.execute(SQL["visible_response"], (project, response_id)).fetchone() is None:
        return None
    upwards = order == "asc"
    bound = -1 if upwards else _HIGHEST_POSITION
    if after is not None:
        highest, lowest = connection.execute(SQL["place_of_input_item"], (response_id, after)).fetchone()
        if highest is None:
            return Page((), has_more=False)
        bound = highest if upwards else lowest
    statement = SQL["input_items_first_first" if upwards else "input_items_last_first"]
    rows = connection.execute(statement, (response_id, bound, limit + 1)).fetchall()
    return Page(_items(rows[:limit]), has_more=len(rows) > limit)


def items_by_id(connection: sqlite3.Connection, project: str, ids: Sequence[str]) -> dict[str, bytes]:
    """The items that exist among these ids; of several with one id, the newest."""
    wanted = encode(list(ids)).decode()
    return dict(connection.execute(SQL["items_by_id"], (project, wanted)).fetchall())


def events_after(
    connection: sqlite3.Connection, response_id: str, after: int, limit: int
) -> list[EventWindow]:
    """Windows that end above `after`, in order."""
    rows = connection.execute(SQL["events_after"], (response_id, after, limit)).fetchall()
    return [EventWindow(*row) for row in rows]


def counts(connection: sqlite3.Connection) -> dict[str, Any]:
    """How many rows of each kind there are."""
    open_runs: dict[str, int] = dict(connection.execute(SQL["count_open_runs"]).fetchall())
    runs, hidden, items, steps, windows = connection.execute(SQL["count_rows"]).fetchone()
    queued, running = open_runs.get("queued", 0), open_runs.get("running", 0)
    return {
        "runs": {"queued": queued, "running": running, "ended": runs - queued - running},
        "responses": runs - hidden,
        "items": items,
        "steps": steps,
        "event_windows": windows,
    }


def _items(rows: Iterable[tuple[Any, ...]]) -> tuple[StoredItem, ...]:
    return tuple(StoredItem(*row) for row in rows)


def _step(row: Sequence[Any]) -> StepRow:
    return StepRow(
        id=row[0],
        request_id=row[1],
        ordinal=row[2],
        step_kind=_KINDS[row[3]],
        step_sequence=row[4],
        request_payload=row[5],
        state=_STATES[row[6]],
        created_at=row[7],
        updated_at=row[8],
        prev_step_id=row[9],
        parent_step_id=row[10],
        response_payload=row[11],
        error=row[12],
        retry_attempt=row[13],
        started_at=row[14],
        completed_at=row[15],
        failed_at=row[16],
        canceled_at=row[17],
    )


def _run(row: Sequence[Any]) -> StoredRun:
    return StoredRun(
        run_id=row[0],
        project=row[1],
        response_id=row[2],
        state=row[3],
        mode=row[4],
        request=row[5],
        body_digest=row[6],
        created_at=row[7],
        fence=row[8],
        owner=row[9],
        commit_no=row[10],
        takeovers=row[11],
        next_sequence_number=row[12],
        cancel_requested=bool(row[13]),
        keyed=bool(row[14]),
        requires=_decode_names(row[15]),
    )


def _response(row: Sequence[Any], output: tuple[StoredItem, ...]) -> StoredResponse:
    return StoredResponse(
        response_id=row[0],
        run_id=row[1],
        project=row[2],
        status=row[3],
        model=row[4],
        mode=row[5],
        created_at=row[6],
        envelope=row[7],
        previous_response_id=row[8],
        completed_at=row[9],
        next_sequence_number=row[10],
        output=output,
    )
