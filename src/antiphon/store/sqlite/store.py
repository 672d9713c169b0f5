"""The store in one SQLite file: a writer, a few readers, and the protocol on top.

Begin here, then `commit` (the hot path) and `writer` (the one transaction that serves many). `queries.sql`
holds every statement, `schema.sql` what each row must obey.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from antiphon.domain.errors import ConfigurationError, StoreUnavailableError
from antiphon.domain.inference import Item
from antiphon.store.protocol import (
    DEFAULT_PROJECT,
    Claim,
    Commit,
    CommitOutcome,
    EventWindow,
    History,
    Order,
    Page,
    ResponsePage,
    ResponseStepStore,
    StepRow,
    StoredResponse,
    StoredRun,
)
from antiphon.store.responses import WholeResponses
from antiphon.store.rows import from_json
from antiphon.store.sqlite import reads
from antiphon.store.sqlite.commit import write_group
from antiphon.store.sqlite.connection import prepare
from antiphon.store.sqlite.deletion import delete_response
from antiphon.store.sqlite.lock import FileLock
from antiphon.store.sqlite.readers import Readers
from antiphon.store.sqlite.statements import SCHEMA_VERSION, SQL
from antiphon.store.sqlite.steps import SqliteSteps
from antiphon.store.sqlite.writer import Writer

_LONG_COUNT_S = 0.1
_REST = 100


class SqliteStore(SqliteSteps, WholeResponses):
    """`Store` over the file at `path`; `clock` gives Unix seconds where no row brings its time."""

    def __init__(self, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time) -> None:
        if os.fspath(path) == ":memory:":
            raise ConfigurationError("a SQLite store needs a file", hint="Use `memory:` to keep nothing.")
        self.path = Path(path).resolve()
        super().__init__(Writer(self.path), Readers(self.path), clock)
        self._lock = FileLock(self.path)
        self._inode: tuple[int, int] | None = None
        self._counts: dict[str, Any] = {}
        self._counts_good_until = 0.0

    async def open(self) -> None:
        """Lock the file, settle its schema, start the threads."""
        await asyncio.to_thread(self._open)

    async def close(self) -> None:
        """Finish what waits, fold the write-ahead log into the file, and let go of it."""
        await asyncio.to_thread(self._close)

    def under(self, claim: Claim) -> ResponseStepStore:
        """The step methods, fenced."""
        return SqliteSteps(self._writer, self._readers, self._clock, claim)

    async def commit(self, group: Sequence[Commit]) -> list[CommitOutcome]:
        """Write a group in one transaction."""
        return await self._writer.ask(lambda connection: write_group(connection, group))

    async def take_over(self, owner: str) -> list[StoredRun]:
        """Claim every run that has not ended."""

        def work(connection: sqlite3.Connection) -> list[StoredRun]:
            connection.execute(SQL["take_over"], (owner,))
            return reads.open_runs(connection)

        return await self._writer.ask(work)

    async def seize(self, run_id: str, owner: str, *, cancel: bool = False) -> StoredRun | None:
        """Raise the fence of a run that has not ended, and own it."""

        def work(connection: sqlite3.Connection) -> StoredRun | None:
            seized = connection.execute(SQL["seize"], (run_id, owner, cancel)).fetchall()
            return reads.run_by_id(connection, run_id) if seized else None

        return await self._writer.ask(work)

    async def get_run(self, run_id: str) -> StoredRun | None:
        """The run's row, or None."""
        return await self._readers.ask(lambda connection: reads.run_by_id(connection, run_id))

    async def list_steps(self, run_id: str) -> list[StepRow]:
        """All steps of a run as stored."""
        return await self._readers.ask(lambda connection: reads.steps_of_run(connection, run_id))

    async def read_response(self, project: str, response_id: str) -> StoredResponse | None:
        """The response with its output."""
        return await self._readers.ask(
            lambda connection: reads.response_by_id(connection, project, response_id)
        )

    async def list_responses(
        self,
        project: str,
        *,
        limit: int = 20,
        after: str | None = None,
        order: Order = "desc",
        status: str | None = None,
        prefix: str | None = None,
    ) -> ResponsePage:
        """Responses by creation."""
        return await self._readers.ask(
            lambda connection: reads.responses(
                connection, project, limit=limit, after=after, order=order, status=status, prefix=prefix
            )
        )

    async def history(self, project: str, response_id: str) -> History | None:
        """A response and all before it."""
        return await self._readers.ask(lambda connection: reads.history(connection, project, response_id))

    async def input_items(
        self,
        project: str,
        response_id: str,
        *,
        limit: int = 20,
        after: str | None = None,
        order: Order = "desc",
    ) -> Page | None:
        """The input items of one response."""
        return await self._readers.ask(
            lambda connection: reads.input_items(
                connection, project, response_id, limit=limit, after=after, order=order
            )
        )

    async def get_items(self, ids: Sequence[str], *, project: str = DEFAULT_PROJECT) -> list[Item]:
        """The items of this project that exist among these ids."""
        found = await self._readers.ask(lambda connection: reads.items_by_id(connection, project, ids))
        return [Item(item_id, from_json(data)) for item_id, data in found.items()]

    async def events(self, response_id: str, after: int, *, limit: int = 64) -> list[EventWindow]:
        """Windows whose `last` is above `after`."""
        return await self._readers.ask(
            lambda connection: reads.events_after(connection, response_id, after, limit)
        )

    async def find_by_digest(self, project: str, body_digest: str, since: float) -> list[StoredRun]:
        """Runs admitted with this body since this time."""
        return await self._readers.ask(
            lambda connection: reads.runs_by_digest(connection, project, body_digest, since)
        )

    async def find_by_key(self, project: str, idempotency_key: str) -> tuple[str, str] | None:
        """Who used this idempotency key."""
        return await self._readers.ask(
            lambda connection: reads.holder_of_key(connection, project, idempotency_key)
        )

    async def delete_response(self, project: str, response_id: str) -> bool:
        """Hide a response, and erase what nothing living descends from."""
        return await self._writer.ask(lambda connection: delete_response(connection, project, response_id))

    async def check(self) -> dict[str, Any]:
        """Write a row, and count the others."""
        if self._inode is not None and _inode_of(self.path) != self._inode:
            raise StoreUnavailableError(
                f"the database file was removed or replaced: {self.path}",
                hint="Stop the server; what it writes now is lost when it ends.",
            )
        now = self._clock()
        await self._writer.ask(lambda connection: connection.execute(SQL["prove_writable"], (now,)).rowcount)
        counts = await self._count()
        return {
            "kind": "sqlite",
            "path": str(self.path),
            "schema_version": SCHEMA_VERSION,
            "size_bytes": _size_of(self.path) + _size_of(self.path.with_name(self.path.name + "-wal")),
            **counts,
        }

    async def _count(self) -> dict[str, Any]:
        """The counts; those of a large store are kept for a hundred times what counting took."""
        started = time.monotonic()
        if started < self._counts_good_until:
            return self._counts
        self._counts = await self._readers.ask(reads.counts)
        ended = time.monotonic()
        if ended - started > _LONG_COUNT_S:
            self._counts_good_until = ended + _REST * (ended - started)
        return self._counts

    def _open(self) -> None:
        if self._writer.is_open:
            raise ConfigurationError(f"the store on {self.path} is open already")
        if not self.path.parent.is_dir():
            raise ConfigurationError(
                f"the directory {self.path.parent} does not exist", hint="Create it, or choose another path."
            )
        self._lock.acquire()
        try:
            connection = prepare(self.path)
        except BaseException:
            self._lock.release()
            raise
        self._inode = _inode_of(self.path)
        self._counts_good_until = 0.0
        self._writer.start(connection)
        self._readers.start()

    def _close(self) -> None:
        if not self._writer.is_open:
            return
        # The writer's connection is the last to close: it folds the log into the file.
        self._readers.stop()
        self._writer.stop()
        self._lock.release()


def _inode_of(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
