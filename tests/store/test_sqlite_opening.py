"""Opening and closing: what a file must be, and what an error says when it is not."""

import asyncio
import contextlib
import sqlite3

import pytest

from antiphon.domain.errors import ConfigurationError, StoreUnavailableError
from antiphon.store.sqlite import connection as connections
from antiphon.store.sqlite.connection import APPLICATION_ID
from antiphon.store.sqlite.statements import SCHEMA_VERSION
from antiphon.store.sqlite.store import SqliteStore
from antiphon.testing.store_conformance.story import Story, item, written


def _execute(path, *statements):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [connection.execute(statement).fetchone() for statement in statements]


@pytest.mark.anyio
async def test_a_file_is_opened_again_as_it_was(tmp_path):
    """A closed store is one file, which opens again with everything in it."""
    store, story = SqliteStore(tmp_path / "store.db"), Story()
    await store.open()
    await written(store, story.admitted(input_items=(item("in"),)), story.ended(item("out")))
    before = await store.read_response("default", story.response_id)
    await store.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store.db", "store.db-lock"]
    await store.open()
    assert await store.read_response("default", story.response_id) == before
    await store.close()
    pragmas = _execute(store.path, "PRAGMA journal_mode", "PRAGMA user_version", "PRAGMA application_id")
    assert pragmas == [("wal",), (SCHEMA_VERSION,), (APPLICATION_ID,)]


def test_event_loops_may_follow_one_another(tmp_path):
    """A store that was opened in one event loop serves the next one."""
    store, stories = SqliteStore(tmp_path / "store.db"), [Story(at_s=n) for n in range(3)]
    asyncio.run(store.open())
    for story in stories:
        asyncio.run(written(store, story.admitted()))
    page = asyncio.run(store.list_responses("default"))
    assert len(page.responses) == len(stories)
    asyncio.run(store.close())


@pytest.mark.anyio
async def test_a_closed_store_says_so(tmp_path):
    """Before `open` and after `close` every call is refused; closing twice is nothing."""
    store = SqliteStore(tmp_path / "store.db")
    with pytest.raises(StoreUnavailableError, match="not open"):
        await store.get_run("run")
    await store.open()
    with pytest.raises(ConfigurationError, match="open already"):
        await store.open()
    await store.close()
    await store.close()
    with pytest.raises(StoreUnavailableError, match="not open"):
        await store.commit([])


@pytest.mark.anyio
async def test_closing_finishes_what_was_asked(tmp_path):
    """Commits that were under way when the store was closed are written."""
    store, stories = SqliteStore(tmp_path / "store.db"), [Story(at_s=n) for n in range(50)]
    await store.open()
    under_way = [asyncio.ensure_future(store.commit([story.admitted()])) for story in stories]
    await asyncio.sleep(0)
    await store.close()
    assert await asyncio.gather(*under_way) == [[None]] * 50
    assert _execute(store.path, "SELECT count(*) FROM runs") == [(50,)]


@pytest.mark.anyio
async def test_a_missing_directory_is_named(tmp_path):
    """A path whose directory does not exist is a mistake of configuration, and nothing is made."""
    with pytest.raises(ConfigurationError, match=r"the directory .*missing does not exist"):
        await SqliteStore(tmp_path / "missing" / "store.db").open()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.anyio
async def test_a_file_of_another_kind_is_left_alone(tmp_path):
    """What is not a database, or is another program's, or is a directory, is refused and not touched."""
    text, foreign = tmp_path / "notes.txt", tmp_path / "foreign.db"
    text.write_text("these are my notes, and no database at all\n" * 100)
    _execute(foreign, "CREATE TABLE mine (a)")
    before = text.read_bytes(), foreign.read_bytes()
    with pytest.raises(ConfigurationError, match="not a SQLite database"):
        await SqliteStore(text).open()
    with pytest.raises(ConfigurationError, match="of another program"):
        await SqliteStore(foreign).open()
    (tmp_path / "directory").mkdir()
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        await SqliteStore(tmp_path / "directory").open()
    assert (text.read_bytes(), foreign.read_bytes()) == before


@pytest.mark.anyio
async def test_a_newer_schema_is_refused(tmp_path):
    """A file that a newer version wrote is refused by number; the lock is not kept."""
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    await store.close()
    _execute(store.path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=f"schema {SCHEMA_VERSION + 1}, written by a newer"):
            await store.open()
    _execute(store.path, f"PRAGMA user_version = {SCHEMA_VERSION}")
    await store.open()
    await store.close()


@pytest.mark.anyio
async def test_a_half_made_file_is_made_whole(tmp_path):
    """An empty file, as a crash while creating leaves it, becomes a store."""
    (tmp_path / "store.db").touch()
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    await store.check()
    await store.close()


def test_memory_is_not_a_file():
    """SQLite's own in-memory database would lose everything with its connection."""
    with pytest.raises(ConfigurationError, match="needs a file"):
        SqliteStore(":memory:")


@pytest.mark.anyio
async def test_another_programs_lock_is_waited_for_then_reported(tmp_path, monkeypatch):
    """While somebody else writes to the file nothing can be written; afterwards it can."""
    monkeypatch.setattr(connections, "_BUSY_TIMEOUT_MS", 50)
    store, story = SqliteStore(tmp_path / "store.db"), Story()
    await store.open()
    with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as intruder:
        intruder.execute("BEGIN IMMEDIATE")
        commit = story.admitted()
        with pytest.raises(StoreUnavailableError, match="another program has locked"):
            await store.commit([commit])
        assert await store.get_run(story.run_id) is None
        intruder.execute("ROLLBACK")
    await written(store, commit)
    await store.close()


@pytest.mark.anyio
async def test_a_removed_file_is_noticed(tmp_path):
    """`check` tells when the file was removed under the store, which SQLite does not."""
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    await store.check()
    store.path.unlink()
    with pytest.raises(StoreUnavailableError, match="removed or replaced"):
        await store.check()
    await store.close()
