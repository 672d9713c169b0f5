"""Work that crosses from an event loop to a thread, and its result that comes back.

A job is a function of a connection. Any number of loops, one after the other or at once, may ask; each
result goes back to the loop that asked. The queue needs no bound of its own: whoever asks waits.
"""

import asyncio
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from sqlite3 import Connection
from typing import Any, TypeVar

from antiphon.domain.errors import StoreUnavailableError

T = TypeVar("T")
Work = Callable[[Connection], T]


class Job:
    """One piece of work, and where its result is awaited."""

    __slots__ = ("error", "future", "loop", "value", "work")

    def __init__(self, work: Work[Any]) -> None:
        self.work = work
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.value: Any = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        """Hand the result over; on the job's loop. Whoever stopped waiting is not told."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)


class JobQueue:
    """Jobs on their way to a thread; `None` tells one thread to end."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self.is_open = False

    async def ask(self, work: Work[T]) -> T:
        """The result of this work, done in a thread."""
        if not self.is_open:
            raise StoreUnavailableError("the store is not open", hint="Call `await store.open()` first.")
        job = Job(work)
        self._queue.put(job)
        value: T = await job.future
        return value

    def get(self) -> Job | None:
        """The next job, waited for."""
        return self._queue.get()

    def get_waiting(self, limit: int) -> list[Job | None]:
        """Jobs that wait already, at most `limit`, up to a word to end."""
        waiting: list[Job | None] = []
        while len(waiting) < limit:
            try:
                waiting.append(self._queue.get_nowait())
            except Empty:
                break
            if waiting[-1] is None:
                break
        return waiting

    def end_one(self) -> None:
        """Tell one thread to end when all that came before is done."""
        self._queue.put(None)


def hand_back(jobs: Iterable[Job]) -> None:
    """Return results to the loops that asked: one wake-up per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, done in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, done)
        except RuntimeError:
            continue  # the loop was closed: nobody waits there any more


def _settle(jobs: list[Job]) -> None:
    for job in jobs:
        job.settle()
