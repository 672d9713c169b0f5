"""How much work one process takes on: so many running, so many waiting, no more."""

import asyncio

from antiphon.domain.errors import RateLimitError
from antiphon.domain.limits import Limits
from antiphon.observe import metrics

RETRY_AFTER_S = 2.0


class Place:
    """One response's place: taken at admission, given back at its end."""

    def __init__(self, workload: "Workload", *, waits: bool) -> None:
        self._workload = workload
        self._running = False
        self.waits = waits

    async def start(self) -> None:
        """Wait for a running place."""
        if not self._running:
            await self._workload.running.acquire()
            self._running = True
            metrics.RUNNING.inc()

    def leave(self) -> None:
        """Give everything back. May be called again."""
        if self._running:
            self._running = False
            self._workload.running.release()
            metrics.RUNNING.dec()
        self._workload.places.discard(self)
        self._workload.note_waiting()


class Workload:
    """Counts places. Running ones are given in the order of asking."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.running = asyncio.Semaphore(limits.running)
        self.places: set[Place] = set()

    def admit(self) -> Place:
        """A place for a new response; `RateLimitError` when all are taken."""
        most = self._limits.running + self._limits.waiting
        if len(self.places) >= most:
            metrics.REJECTED.inc()
            raise RateLimitError(
                f"{self._limits.running} responses are running and {self._limits.waiting} are waiting.",
                retry_after_s=RETRY_AFTER_S,
                limit=most,
                hint="Come back after the time in Retry-After.",
            )
        return self.adopt()

    def adopt(self) -> Place:
        """A place for work that was admitted before: never refused."""
        place = Place(self, waits=len(self.places) >= self._limits.running)
        self.places.add(place)
        self.note_waiting()
        return place

    def note_waiting(self) -> None:
        """Show how many wait."""
        metrics.WAITING.set(max(0, len(self.places) - self._limits.running))
