"""Deleting: hidden at once, erased when nothing living descends from it."""

import sqlite3

from antiphon.domain.errors import ConflictError
from antiphon.store.sqlite.statements import SQL


def delete_response(connection: sqlite3.Connection, project: str, response_id: str) -> bool:
    """Hide a response, then erase it and every hidden turn before it that is left without a descendant."""
    state = connection.execute(SQL["state_of_response"], (project, response_id)).fetchone()
    if state is None:
        return False
    if state[0] != "ended":
        raise ConflictError(f"{response_id} has not ended", hint="Cancel it, then delete it.")
    connection.execute(SQL["hide_response"], (response_id,))
    _erase_upwards(connection, response_id)
    return True


def _erase_upwards(connection: sqlite3.Connection, response_id: str | None) -> None:
    while response_id is not None:
        row = connection.execute(SQL["erasable_response"], (response_id,)).fetchone()
        if row is None:
            return
        run_id, parent_id = row
        for name, key in (
            ("erase_items", response_id),
            ("erase_events", response_id),
            ("erase_steps", run_id),
            ("erase_request", run_id),
            ("erase_run", run_id),
            ("erase_response", response_id),
        ):
            connection.execute(SQL[name], (key,))
        response_id = parent_id
