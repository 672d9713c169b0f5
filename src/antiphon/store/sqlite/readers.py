"""The few threads that read, each with its own connection.

A job sees one state of the store from beginning to end, with everything that was committed before.
"""

import contextlib
import sqlite3
import threading
from pathlib import Path

from antiphon.domain.errors import Error, StoreError
from antiphon.store.sqlite.connection import connect, unavailable
from antiphon.store.sqlite.jobs import Job, JobQueue, hand_back


class Readers(JobQueue):
    """Runs jobs in read transactions, several at a time."""

    def __init__(self, path: Path, threads: int = 3) -> None:
        super().__init__()
        self._path = path
        self._count = threads
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to work; connections are opened when they are first needed."""
        self._threads = [
            threading.Thread(target=self._run, name=f"antiphon-store-reader-{n}", daemon=True)
            for n in range(self._count)
        ]
        self.is_open = True
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish what waits, and close the connections; blocks until that is done."""
        self.is_open = False
        for _ in self._threads:
            self.end_one()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        while (job := self.get()) is not None:
            connection = self._read(job, connection)
            hand_back([job])
        if connection is not None:
            connection.close()

    def _read(self, job: Job, connection: sqlite3.Connection | None) -> sqlite3.Connection | None:
        try:
            if connection is None:
                connection = connect(self._path, writes=False)
            connection.execute("BEGIN")
            job.value = job.work(connection)
            connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - whatever went wrong, whoever asked must hear of it
            job.error = _as_error(error)
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    connection.close()
            return None
        return connection


def _as_error(error: Exception) -> Error:
    if isinstance(error, Error):
        return error
    return unavailable(error) or StoreError(f"the store cannot read this: {error}")
