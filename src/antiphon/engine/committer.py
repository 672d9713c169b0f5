"""The committer: one writer for all runs of the process.

Journals say that they have something to write; the committer takes one entry from each, writes the group,
and tells each journal what became of its own. While a group is under way what comes is merged into the
next: a run never has two commits in flight, so its numbers become visible in order.

Urgent entries (somebody waits for them) go as soon as the writer is free. Others wait for company, at
most one window; when nothing has been written for a window they go at once.

When the store cannot write at all (full, locked, gone), work pauses: runs keep their entries and the group
is tried again, with whoever came meanwhile; admissions, which nobody has been told of, are refused.
"""

import asyncio
import contextlib
from typing import Protocol

from antiphon.domain.crash_points import reach
from antiphon.domain.errors import Error, StoreRefusedError, StoreUnavailableError
from antiphon.observe import metrics
from antiphon.observe.logs import get_logger
from antiphon.store.protocol import Commit, CommitOutcome, Store

log = get_logger("antiphon.committer")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


class Entrant(Protocol):
    """A journal, as the committer sees it."""

    def take(self) -> Commit | None:
        """What is to be written now; None when that is nothing."""
        ...

    def settle(self, commit: Commit, outcome: CommitOutcome) -> None:
        """The entry has been written (None) or will never be."""
        ...

    def die(self, error: Error) -> None:
        """Write nothing more."""
        ...


class Committer:
    """Groups the commits of many journals. Owns one task between `start` and `close`."""

    def __init__(self, store: Store, *, window_s: float) -> None:
        self._store = store
        self._window_s = window_s
        self._waiting: dict[Entrant, None] = {}
        self._work = asyncio.Event()
        self._urgent = asyncio.Event()
        self._last_write = 0.0
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self.unavailable_since: float | None = None

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._write_all(), name="antiphon-committer")

    async def close(self) -> None:
        """Write what is waiting, then stop."""
        self._closing = True
        self._work.set()
        self._urgent.set()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def kick(self, entrant: Entrant, *, urgent: bool) -> None:
        """This journal has something to write."""
        self._waiting[entrant] = None
        self._work.set()
        if urgent:
            self._urgent.set()

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        while not (self._closing and not self._waiting):
            await self._work.wait()
            wait_s = self._last_write + self._window_s - loop.time()
            if wait_s > 0 and not self._urgent.is_set():
                timer = loop.call_later(wait_s, self._urgent.set)
                await self._urgent.wait()
                timer.cancel()
            self._work.clear()
            self._urgent.clear()
            entrants, self._waiting = self._waiting, {}
            self._last_write = loop.time()
            group = [(e, commit) for e in entrants if (commit := _taken(e)) is not None]
            if group:
                await self._write(group)

    async def _write(self, group: list[tuple[Entrant, Commit]]) -> None:
        pause_s = FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while group:
            started = loop.time()
            try:
                reach("commit.before")
                outcomes = await self._store.commit([commit for _, commit in group])
                reach("commit.after")
            except StoreUnavailableError as error:
                self._note_unavailable(loop.time(), error)
                group = _without_admissions(group, error)
                if self._closing:
                    _settle_all(group, error)
                    return
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
                group += self._newcomers(group)
                if not group:  # nobody is held up: the next entry finds out how the store is
                    self.unavailable_since = None
                continue
            except Exception as error:  # a defect in a store must not stop everybody's writer
                log.exception("commit_failed", runs=len(group))
                _settle_all(
                    group, error if isinstance(error, Error) else Error(f"The commit failed: {error!r}")
                )
                return
            if self.unavailable_since is not None:
                with contextlib.suppress(OSError):
                    log.info("store_available", after_s=round(loop.time() - self.unavailable_since, 3))
                self.unavailable_since = None
            metrics.COMMITS.inc(len(group))
            metrics.COMMIT_GROUPS.inc()
            metrics.COMMIT_SECONDS.observe(loop.time() - started)
            for (entrant, commit), outcome in zip(group, outcomes, strict=True):
                entrant.settle(commit, outcome)
            return

    def _newcomers(self, group: list[tuple[Entrant, Commit]]) -> list[tuple[Entrant, Commit]]:
        """Who came while the group could not be written: an admission among them must hear of that too."""
        tried = {entrant for entrant, _ in group}
        came = [entrant for entrant in self._waiting if entrant not in tried]
        for entrant in came:
            del self._waiting[entrant]
        return [(entrant, commit) for entrant in came if (commit := _taken(entrant)) is not None]

    def _note_unavailable(self, now: float, error: StoreUnavailableError) -> None:
        if self.unavailable_since is None:
            self.unavailable_since = now
            with contextlib.suppress(OSError):  # the log may lie on the same full disk
                log.error("store_unavailable", error=str(error))


def _taken(entrant: Entrant) -> Commit | None:
    """The entry of one journal. One that cannot be made fails its own run and no other."""
    try:
        return entrant.take()
    except Exception as error:
        log.exception("entry_failed")
        entrant.die(StoreRefusedError(f"The entry cannot be written: {error}"))
        return None


def _without_admissions(
    group: list[tuple[Entrant, Commit]], error: StoreUnavailableError
) -> list[tuple[Entrant, Commit]]:
    """Refuse the admissions of a group; nobody has been told of those runs."""
    for entrant, commit in group:
        if commit.new_run is not None:
            entrant.settle(commit, error)
    return [(entrant, commit) for entrant, commit in group if commit.new_run is None]


def _settle_all(group: list[tuple[Entrant, Commit]], error: Error) -> None:
    for entrant, commit in group:
        entrant.settle(commit, error)
