"""The one thread that writes.

It owns the writing connection. What waits when it comes by becomes one transaction, one job beside the
other, each behind a savepoint of its own: a job that fails leaves nothing behind and spoils no other, and
one `fsync` serves them all. When the disk does not take the transaction, nothing of it was written and
every job of it hears so; the next one finds a fresh connection.
"""

import contextlib
import sqlite3
import threading
from pathlib import Path

from antiphon.domain.errors import Error, StoreRefusedError, StoreUnavailableError
from antiphon.store.sqlite.connection import connect, still_good, unavailable
from antiphon.store.sqlite.jobs import Job, JobQueue, Work, hand_back

_MOST_JOBS = 64
"""A transaction takes no more, so that nobody waits for everybody."""


class Writer(JobQueue):
    """Runs jobs in write transactions, in the order in which they came."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._thread: threading.Thread | None = None

    def start(self, connection: sqlite3.Connection) -> None:
        """Begin to work, on this connection."""
        self._connection = connection
        self._thread = threading.Thread(target=self._run, name="antiphon-store-writer", daemon=True)
        self.is_open = True
        self._thread.start()

    def stop(self) -> None:
        """Finish what waits, and close the connection; blocks until that is done."""
        self.is_open = False
        if self._thread is not None:
            self.end_one()
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (first := self.get()) is not None:
            batch = [first, *self.get_waiting(_MOST_JOBS - 1)]
            jobs = [job for job in batch if job is not None]
            self._write(jobs)
            hand_back(jobs)
            if len(jobs) < len(batch):
                break
        self._drop_connection()

    def _write(self, jobs: list[Job]) -> None:
        try:
            if self._connection is None:
                self._connection = connect(self._path, writes=True)
            _run_in_one_transaction(self._connection, jobs)
        except Exception as error:  # noqa: BLE001 - whatever went wrong, every job must hear of it
            self._abandon(error)
            for job in jobs:
                job.value, job.error = None, _for_all(error)

    def _abandon(self, error: Exception) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._drop_connection()
            return
        if not (isinstance(error, sqlite3.Error) and still_good(error)):
            self._drop_connection()

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def _run_in_one_transaction(connection: sqlite3.Connection, jobs: list[Job]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for job in jobs:
        alone(connection, job)
    connection.execute("COMMIT")


def alone(connection: sqlite3.Connection, job: Job) -> None:
    """Run one job behind a savepoint; raises only what concerns the whole transaction."""
    connection.execute("SAVEPOINT job")
    try:
        job.value = job.work(connection)
    except Exception as error:
        if unavailable(error) is not None:
            raise
        job.error = as_entry_error(error)
        connection.execute("ROLLBACK TO job")
    connection.execute("RELEASE job")


def as_entry_error(error: Exception) -> Error:
    """What an entry hears that failed alone."""
    return error if isinstance(error, Error) else StoreRefusedError(f"the store cannot write this: {error}")


def _for_all(error: Exception) -> Error:
    return unavailable(error) or StoreUnavailableError(f"the store failed: {error}")


__all__ = ["Work", "Writer"]
