"""Writing a group of commits: many runs, a few statements.

The whole group is tried at once, statement by statement rather than run by run, because what costs is the
statement, not the row. Every entry's guard names its fence; when a guard matches no row, or anything
else is not as the group expects, all of it is taken back and each entry is written alone, by the same
code, so that only those fall out that have to. Both happen inside one transaction.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.json import encode

from antiphon.domain.errors import ClaimLost, Error
from antiphon.store.entries import (
    NUMBERS_USED,
    OTHER_RESPONSE,
    claim_lost,
    key_taken,
    problem_of_commit,
    refused,
    state_after,
)
from antiphon.store.protocol import Commit, CommitOutcome, NewRun, StepRow
from antiphon.store.sqlite.connection import unavailable
from antiphon.store.sqlite.statements import SQL

_INSERT_RUN = SQL["insert_run"]
_INSERT_REQUEST = SQL["insert_request"]
_INSERT_RESPONSE = SQL["insert_response"]
_INSERT_KEY = SQL["insert_key"]
_ADVANCE_RUN = SQL["advance_run"]
_MOVE_RUN = SQL["move_run"]
_STRIKE_EVENTS = SQL["strike_events"]
_INSERT_STEP = SQL["insert_step"]
_REPLACE_STEP = SQL["replace_step"]
_INSERT_EVENTS = SQL["insert_events"]
_INSERT_ITEM = SQL["insert_item"]
_UPDATE_RESPONSE = SQL["update_response"]
_HOLDER_OF_KEY = SQL["holder_of_key"]
_CLAIM_ALLOWS = SQL["claim_allows"]

INPUT, OUTPUT = 0, 1

_ANY_NUMBER = 2**62

_Row = tuple[Any, ...]


class _Unexpected(Exception):  # noqa: N818 - not an error yet: the entries are tried one by one
    """A statement did not change as many rows as it should have."""

    def __init__(self, blame: Callable[[Commit], Error]) -> None:
        super().__init__()
        self.blame = blame


def write_group(connection: sqlite3.Connection, group: Sequence[Commit]) -> list[CommitOutcome]:
    """Write the group; one outcome per entry. Raises only when nothing can be written at all."""
    if len(group) > 1:
        connection.execute("SAVEPOINT whole")
        try:
            _write(connection, group)
        except Exception as error:
            if unavailable(error) is not None:
                raise
            connection.execute("ROLLBACK TO whole")
        else:
            return [None] * len(group)
        finally:
            if connection.in_transaction:
                connection.execute("RELEASE whole")
    return [_write_alone(connection, commit) for commit in group]


def _write_alone(connection: sqlite3.Connection, commit: Commit) -> CommitOutcome:
    connection.execute("SAVEPOINT entry")
    outcome: CommitOutcome = None
    try:
        _write(connection, (commit,))
    except _Unexpected as unexpected:
        outcome = unexpected.blame(commit)
    except Exception as error:
        if unavailable(error) is not None:
            raise
        outcome = error if isinstance(error, Error) else refused(commit, error)
    if outcome is not None:
        connection.execute("ROLLBACK TO entry")
        outcome = _key_taken(connection, commit) or _not_its_own(connection, commit, outcome) or outcome
    connection.execute("RELEASE entry")
    return outcome


def _key_taken(connection: sqlite3.Connection, commit: Commit) -> Error | None:
    new = commit.new_run
    if new is None or new.idempotency_key is None:
        return None
    holder = connection.execute(_HOLDER_OF_KEY, (new.project, new.idempotency_key)).fetchone()
    return None if holder is None else key_taken(new.idempotency_key, *holder)


def _not_its_own(connection: sqlite3.Connection, commit: Commit, outcome: Error) -> Error | None:
    if not isinstance(outcome, ClaimLost):
        return None
    claim = commit.claim
    values = (claim.run_id, claim.fence, claim.owner, commit.commit_no)
    found = connection.execute(_CLAIM_ALLOWS, values).fetchone()
    if found is None:
        return None
    return refused(commit, NUMBERS_USED if found[0] == commit.response_id else OTHER_RESPONSE)


def _write(connection: sqlite3.Connection, group: Sequence[Commit]) -> None:
    rows = _Rows()
    for commit in group:
        rows.add(commit)
    rows.write(connection)


class _Rows:
    """The rows of a group, sorted by the statement that writes them."""

    def __init__(self) -> None:
        self.runs: list[_Row] = []
        self.requests: list[_Row] = []
        self.responses: list[_Row] = []
        self.keys: list[_Row] = []
        self.advances: list[_Row] = []
        self.moves: list[_Row] = []
        self.strikes: list[_Row] = []
        self.new_steps: list[_Row] = []
        self.changed_steps: list[_Row] = []
        self.windows: list[_Row] = []
        self.items: list[_Row] = []
        self.updates: list[_Row] = []

    def add(self, commit: Commit) -> None:
        """Sort one entry's rows into the statements."""
        problem = problem_of_commit(commit)
        if problem is not None:
            raise refused(commit, problem)
        response_id = commit.response_id
        if commit.new_run is not None:
            self._add_new_run(commit, commit.new_run)
        else:
            self._add_guard(commit)
        for step_id in commit.struck_steps:
            self.strikes.append((response_id, step_id))
        for step in commit.new_steps:
            self.new_steps.append(_step_row(step))
        for step in commit.changed_steps:
            self.changed_steps.append(_step_row(step))
        for window in commit.windows:
            self.windows.append((response_id, window.first, window.last, window.step_id, window.frames))
        for item in commit.input_items:
            self.items.append((response_id, INPUT, item.position, item.item_id, item.data))
        update = commit.response
        if update is not None:
            for item in update.output:
                self.items.append((response_id, OUTPUT, item.position, item.item_id, item.data))
            if commit.new_run is None:
                self.updates.append((update.status, update.envelope, update.completed_at, response_id))

    def write(self, connection: sqlite3.Connection) -> None:
        """Run the statements: runs and their guards, strikes, steps, events, items, responses."""
        _insert(connection, _INSERT_KEY, self.keys)
        _insert(connection, _INSERT_RUN, self.runs)
        _insert(connection, _INSERT_REQUEST, self.requests)
        _insert(connection, _INSERT_RESPONSE, self.responses)
        _change(connection, _ADVANCE_RUN, self.advances, _stale)
        _change(connection, _MOVE_RUN, self.moves, _stale)
        _insert(connection, _STRIKE_EVENTS, self.strikes)
        _insert(connection, _INSERT_STEP, self.new_steps)
        _change(connection, _REPLACE_STEP, self.changed_steps, _no_such_step)
        _insert(connection, _INSERT_EVENTS, self.windows)
        _insert(connection, _INSERT_ITEM, self.items)
        _change(connection, _UPDATE_RESPONSE, self.updates, _no_such_response)

    def _add_new_run(self, commit: Commit, new: NewRun) -> None:
        claim, update = commit.claim, commit.response
        status, envelope, completed_at = new.status, new.envelope, None
        if update is not None:
            status, envelope, completed_at = update.status, update.envelope, update.completed_at
        self.runs.append(
            (
                claim.run_id,
                new.project,
                new.response_id,
                state_after(commit),
                new.mode,
                new.body_digest,
                new.created_at,
                claim.fence,
                None if commit.released else claim.owner,
                commit.commit_no,
                commit.next_sequence_number,
                new.idempotency_key is not None,
                _requires_text(new.requires),
            )
        )
        self.requests.append((claim.run_id, new.request))
        self.responses.append(
            (
                new.response_id,
                claim.run_id,
                new.project,
                status,
                new.model,
                new.mode,
                new.created_at,
                completed_at,
                new.previous_response_id,
                envelope,
            )
        )
        if new.idempotency_key is not None:
            self.keys.append(
                (new.project, new.idempotency_key, new.body_digest, new.response_id, new.created_at)
            )

    def _add_guard(self, commit: Commit) -> None:
        claim = commit.claim
        guard = (
            commit.commit_no,
            commit.next_sequence_number,
            commit.progressed,
            commit.released,
            claim.run_id,
            claim.fence,
            claim.owner,
            commit.response_id,
            commit.windows[0].first if commit.windows else _ANY_NUMBER,
        )
        state = state_after(commit)
        if state is None:
            self.advances.append(guard)
        else:
            self.moves.append((*guard, state))


def _insert(connection: sqlite3.Connection, statement: str, rows: Iterable[_Row]) -> None:
    if rows:
        connection.executemany(statement, rows)


def _change(
    connection: sqlite3.Connection, statement: str, rows: list[_Row], blame: Callable[[Commit], Error]
) -> None:
    if rows and connection.executemany(statement, rows).rowcount != len(rows):
        raise _Unexpected(blame)


def _step_row(step: StepRow) -> _Row:
    return (
        step.id,
        step.request_id,
        step.ordinal,
        step.step_kind,
        step.step_sequence,
        step.request_payload,
        step.state,
        step.created_at,
        step.updated_at,
        step.prev_step_id,
        step.parent_step_id,
        step.response_payload,
        step.error,
        step.retry_attempt,
        step.started_at,
        step.completed_at,
        step.failed_at,
        step.canceled_at,
    )


def _requires_text(requires: tuple[str, ...]) -> str:
    return encode(requires).decode() if requires else "[]"


def _stale(commit: Commit) -> Error:
    return claim_lost(commit.claim)


def _no_such_step(commit: Commit) -> Error:
    return refused(commit, "it changes a step that does not stand there, or along a move that is not legal")


def _no_such_response(commit: Commit) -> Error:
    return refused(commit, f"there is no response {commit.response_id}")
