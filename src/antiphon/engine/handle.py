"""A handle on one response: wait for it, read along, or look at it as it stands."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from antiphon.domain.requests import Arrival
from antiphon.engine.active import ActiveRun, Connection, Finished
from antiphon.engine.following import Follower, replay_of

if TYPE_CHECKING:
    from antiphon.engine.engine import Engine


class ResponseHandle:
    """What `Engine.submit` gives. Holds no claim: letting go of it stops nothing by itself."""

    def __init__(
        self,
        engine: "Engine",
        response_id: str,
        arrival: Arrival,
        run: ActiveRun | None,
        *,
        fresh: bool = False,
    ) -> None:
        self.response_id = response_id
        self._engine = engine
        self._arrival = arrival
        self._run = run
        self._follower: Follower | None = None
        if fresh and run is not None and run.told:
            # Subscribed before the first commit: this reader never needs the log.
            self._follower = engine.follow(response_id, arrival)

    async def admitted(self) -> None:
        """Return once the response is written down; raises what prevented it."""
        if self._run is not None:
            await asyncio.shield(self._run.admitted)

    @property
    def is_admitted(self) -> bool:
        """True once the response is written down."""
        if self._run is None:
            return True
        return self._run.admitted.done() and self._run.admitted.exception() is None

    async def result(self) -> Finished:
        """The response at its end. Raises `StoreError` or `ServerStoppingError` when it ends elsewhere."""
        if self._run is not None:
            return await asyncio.shield(self._run.finished)
        stored = await self._engine.find(self.response_id, self._arrival.project)
        body = await self._engine.body_of(stored)
        return Finished(stored.status, body, await self._engine.failure_of(stored))

    async def snapshot(self) -> bytes:
        """The response as it stands, as JSON."""
        return await self._engine.retrieve(self.response_id, self._arrival.project)

    async def frames(self, after: int = -1) -> AsyncIterator[bytes]:
        """Event-stream frames after the cursor, up to the terminal event; several at a time.

        Raises `StreamCutError` when the stream must be taken up again with the cursor.
        """
        if self._follower is not None and after < 0:
            async for frames in self._follower.live_only():
                yield frames
            return
        self.leave()
        if self._run is not None:
            untold = not self._run.told
        else:
            stored = await self._engine.find(self.response_id, self._arrival.project)
            untold = stored.mode == "foreground"
        if untold:
            yield replay_of((await self.result()).body, after)
            return
        async for frames in self._engine.follow(self.response_id, self._arrival, after=after):
            yield frames

    def leave(self) -> None:
        """Read no further."""
        if self._follower is not None:
            self._follower.leave()
            self._follower = None

    def reading(self) -> contextlib.AbstractContextManager[Connection]:
        """A connection of the response's client, as long as the block lasts."""
        if self._run is None:
            return contextlib.nullcontext(Connection())
        return self._run.reading()

    def delivered(self) -> None:
        """The whole answer went out to a connection that was still there."""
        self._engine.delivered(self.response_id)
