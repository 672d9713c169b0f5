"""A client's automatic retry finds its first attempt.

Official clients repeat a request by themselves after a lost connection and send no key; they do say that
they retry. Such a request, with the same body, is joined to the response that its first attempt started:
one that still runs, or one that ended moments ago without anybody to hear it. A background response is
answered at its admission: only that answer can have been lost, so only moments after it is it found again.
"""

from collections.abc import Iterable

from antiphon.domain.requests import Arrival
from antiphon.domain.responses import ENDED_STATUSES
from antiphon.engine.active import ActiveRun
from antiphon.engine.parts import Parts
from antiphon.store.protocol import Store, StoredResponse

MOST_REMEMBERED = 10_000
LONGEST_RUN_S = 3600.0


class Deliveries:
    """Which answers have reached their clients: those are never given to a retry."""

    def __init__(self) -> None:
        self._delivered: dict[str, None] = {}

    def note(self, response_id: str) -> None:
        """This answer was sent whole."""
        self._delivered[response_id] = None
        if len(self._delivered) > MOST_REMEMBERED:
            del self._delivered[next(iter(self._delivered))]

    async def find(
        self, store: Store, active: Iterable[ActiveRun], arrival: Arrival, parts: Parts
    ) -> str | None:
        """The response of the first attempt, or None. One that nobody reads comes before others."""
        now = parts.clock()
        grace_s = parts.durability.grace_s
        live = [
            run
            for run in active
            if run.body_digest == arrival.body_digest
            and run.project == arrival.project
            and run.response_id not in self._delivered
            and (run.mode != "background" or now - run.frozen.created_at <= grace_s)
        ]
        if live:
            return min(live, key=lambda run: run.readers).response_id
        for run in await store.find_by_digest(arrival.project, arrival.body_digest, now - LONGEST_RUN_S):
            if run.response_id in self._delivered:
                continue
            stored = await store.read_response(arrival.project, run.response_id)
            if stored is None or stored.status not in ENDED_STATUSES:
                continue
            if now - await _told_at(store, stored) <= grace_s:
                return run.response_id
        return None


async def _told_at(store: Store, stored: StoredResponse) -> float:
    """When its client was, or would have been, told of this response."""
    if stored.mode == "background":
        return stored.created_at
    if stored.completed_at is None and stored.status in {"failed", "incomplete"}:
        steps = await store.list_steps(stored.run_id)
        return max((step.updated_at for step in steps), default=stored.created_at)
    return stored.created_at if stored.completed_at is None else stored.completed_at
