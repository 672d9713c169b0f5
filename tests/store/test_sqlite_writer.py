"""The writing thread: one transaction for what waits, each job for itself, all of it on the disk."""

import asyncio
import contextlib
import sqlite3
import threading

import pytest

from antiphon.domain.errors import StoreRefusedError, StoreUnavailableError
from antiphon.store.sqlite.store import SqliteStore
from antiphon.testing.store_conformance.story import Story, item, written


@pytest.fixture
async def store(tmp_path, anyio_backend):
    """An opened, empty store."""
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    yield store
    await store.close()


def _note(name):
    return lambda connection: connection.execute("INSERT INTO meta VALUES (?, 1)", (name,)).rowcount


def _note_and_fail(name, error):
    def work(connection):
        _note(name)(connection)
        raise error

    return work


async def _notes(store):
    rows = await store._readers.ask(lambda connection: connection.execute("SELECT name FROM meta").fetchall())
    return [name for (name,) in rows]


class _Gate:
    """Holds the writer until everything that a test asks for waits behind it."""

    def __init__(self, store):
        self._store = store
        self._open = threading.Event()
        self._entered = threading.Event()

    async def __aenter__(self):
        def hold(_connection):
            self._entered.set()
            assert self._open.wait(10)

        self._held = asyncio.ensure_future(self._store._writer.ask(hold))
        await asyncio.to_thread(self._entered.wait, 10)

    async def __aexit__(self, *_error):
        await asyncio.sleep(0)
        self._open.set()
        await self._held


async def _together(store, *works):
    async with _Gate(store):
        waiting = [asyncio.ensure_future(store._writer.ask(work)) for work in works]
        await asyncio.sleep(0)
    return await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.anyio
async def test_a_job_that_fails_spoils_no_other(store):
    """In one transaction a job that raises is taken back whole; those beside it are written."""
    outcomes = await _together(
        store, _note("a"), _note_and_fail("b", ValueError("no")), _note("c"), _note("c"), _note("d")
    )
    assert [type(outcome) for outcome in outcomes] == [int, StoreRefusedError, int, StoreRefusedError, int]
    assert await _notes(store) == ["a", "c", "d"]


@pytest.mark.anyio
async def test_what_waits_is_one_transaction(store):
    """Many jobs that wait together cost one transaction, and when it fails all of them hear so."""
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    outcomes = await _together(store, _note("a"), _note_and_fail("b", full), _note("c"))
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailableError] * 3
    assert "the disk is full" in str(outcomes[0])
    assert await _notes(store) == []
    assert await store._writer.ask(_note("later")) == 1
    assert await _notes(store) == ["later"]


@pytest.mark.anyio
async def test_a_broken_connection_is_replaced(store):
    """After an error of the disk the next job finds a fresh connection."""
    broken = sqlite3.OperationalError("disk I/O error")
    broken.sqlite_errorcode = sqlite3.SQLITE_IOERR
    before = store._writer._connection
    with pytest.raises(StoreUnavailableError, match="does not take or give data"):
        await store._writer.ask(_note_and_fail("a", broken))
    assert await store._writer.ask(_note("b")) == 1
    assert store._writer._connection is not before
    assert await _synchronous(store) == 2


async def _synchronous(store):
    return await store._writer.ask(lambda connection: connection.execute("PRAGMA synchronous").fetchone()[0])


@pytest.mark.anyio
async def test_every_commit_reaches_the_disk(store):
    """The writer syncs each transaction (`synchronous = FULL`): a power cut loses nothing acknowledged."""
    assert await _synchronous(store) == 2


@pytest.mark.anyio
async def test_readers_cannot_write(store):
    """A read that would write is an error, not a second writer."""
    with pytest.raises(Exception, match="readonly"):
        await store._readers.ask(_note("a"))
    assert await _notes(store) == []


@pytest.mark.anyio
async def test_whoever_stops_waiting_disturbs_nobody(store):
    """A task that is cancelled while it waits leaves the others their answers."""
    async with _Gate(store):
        given_up = asyncio.ensure_future(store._writer.ask(_note("a")))
        kept = asyncio.ensure_future(store._writer.ask(_note("b")))
        await asyncio.sleep(0)
        given_up.cancel()
    assert await kept == 1
    with pytest.raises(asyncio.CancelledError):
        await given_up


@pytest.mark.anyio
async def test_erasing_leaves_only_the_key(store):
    """When the last of a conversation is deleted, no table holds anything of it but the idempotency row."""
    first = Story(key="key")
    await written(
        store,
        first.admitted(
            input_items=(item("in"),),
            new_steps=(first.step(0),),
            windows=(first.window(),),
            response=first.completion(),
        ),
    )
    second = Story(at_s=1, previous=first.response_id)
    await written(store, second.admitted(response=second.completion(item("out"))))
    await store.delete_response("default", first.response_id)
    await store.delete_response("default", second.response_id)
    with contextlib.closing(sqlite3.connect(store.path)) as connection:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        ]
        counts = {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}
    assert counts == dict.fromkeys(counts, 0) | {"idempotency": 1}
    assert {"runs", "requests", "responses", "items", "steps", "events"} < counts.keys()
