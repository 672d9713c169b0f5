"""How SQLite finds rows: by index, always; and history visits what it returns."""

import contextlib
import re
import sqlite3
from collections import defaultdict

import pytest

from antiphon.store.sqlite import reads
from antiphon.store.sqlite.connection import prepare
from antiphon.store.sqlite.statements import SQL
from antiphon.store.sqlite.store import SqliteStore
from antiphon.testing.store_conformance.story import Story, item

SCANS = {
    "runs_by_digest_lately": {"second"},  # as many as were asked for
    "history": {"chain"},  # what the recursion has found: as long as the conversation
    "items_by_id": {"json_each"},  # the ids asked for
    "count_rows": {"responses", "items", "steps", "events"},  # counting looks at everything, once in a while
    "count_open_runs": {"runs"},  # of the index of open runs alone
    "take_over": {"runs"},  # of the index of open runs alone
    "open_runs": {"runs"},
}


@pytest.fixture
def connection(tmp_path):
    """A connection to an empty store."""
    with contextlib.closing(prepare(tmp_path / "store.db")) as connection:
        yield connection


def _plan(connection, statement):
    named = set(re.findall(r":(\w+)", statement))
    numbered = [int(number) for number in re.findall(r"\?(\d+)", statement)]
    count = max(numbered) if numbered else statement.count("?")
    values = defaultdict(lambda: None, dict.fromkeys(named)) if named else (None,) * count
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


@pytest.mark.parametrize("name", sorted(SQL))
def test_no_statement_scans_a_table(connection, name):
    """Every statement finds its rows by an index; the exceptions are named, with their reasons."""
    plan = _plan(connection, SQL[name])
    scanned = {line.split()[1] for line in plan if line.startswith("SCAN")} - {"CONSTANT"}
    assert scanned <= SCANS.get(name, set()), plan


def test_open_runs_are_found_by_their_own_index(connection):
    """Taking over looks at the runs that have not ended, however many have."""
    for name in ("take_over", "open_runs", "count_open_runs"):
        assert any("runs_open" in line for line in _plan(connection, SQL[name])), name


def test_a_body_is_found_by_second_and_digest(connection):
    """Both columns of the index are used: the second, and the beginning of the digest."""
    plan = _plan(connection, SQL["runs_by_digest_lately"])
    assert any("runs_by_digest (<expr>=? AND <expr>=?)" in line for line in plan), plan
    plan = _plan(connection, SQL["newest_second"])
    assert plan == ["SEARCH runs USING INDEX runs_by_digest"]


def test_a_page_of_responses_is_sought_and_not_sorted(connection):
    """The list by time reads its page from the index by time, wherever it begins."""
    for name in ("responses_newest_first", "responses_oldest_first"):
        plan = _plan(connection, SQL[name])
        assert any("responses_by_time (project=? AND (created_at" in line for line in plan), plan
        assert not any("TEMP B-TREE" in line for line in plan), plan


async def _tell(store, turns, other_turns=0):
    """A conversation of this many turns, among others; the last id."""
    previous = None
    for turn in range(turns):
        for _ in range(other_turns):
            other = Story(at_s=turn)
            await store.commit(
                [other.admitted(input_items=(item("x"),), response=other.completion(item("y")))]
            )
        story = Story(at_s=turn, previous=previous)
        await store.commit(
            [story.admitted(input_items=(item(f"{turn}"),), response=story.completion(item(f"{turn}")))]
        )
        previous = story.response_id
    return previous


def _work_of_history(path, response_id):
    """How many steps of SQLite's machine the history of this response takes."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        reads.history(connection, "default", response_id)
        steps = [0]
        connection.set_progress_handler(lambda: steps.__setitem__(0, steps[0] + 1), 1)
        told = reads.history(connection, "default", response_id)
        connection.set_progress_handler(None, 0)
    return steps[0], len(told.items)


@pytest.mark.anyio
async def test_history_grows_with_what_it_returns(tmp_path):
    """Three hundred turns take thirty times the work of ten, and strangers in the store take none."""
    work = {}
    for turns, other_turns in ((10, 0), (300, 0), (300, 2)):
        store = SqliteStore(tmp_path / f"{turns}-{other_turns}.db")
        await store.open()
        last = await _tell(store, turns, other_turns)
        work[turns, other_turns], count = _work_of_history(store.path, last)
        assert count == 2 * turns
        await store.close()
    assert work[300, 0] < 31 * work[10, 0]
    assert work[300, 2] <= work[300, 0] * 1.01
