"""Cancellations under way in this process: one per response, joined by everybody who asks for it.

So are the ends of responses whose own run broke.

A cancellation raises the fence. Two of them at once would take the claim from each other, and whoever
waits for the end would be told of a lost claim. Each is a task of its own: a caller that goes away does
not leave a run behind that was claimed and is driven by nobody.
"""

import asyncio
from collections.abc import Callable, Coroutine

from antiphon.domain.errors import ServerStoppingError


class Cancellations:
    """Owns the tasks. What `close` breaks off is ended by the next process: the request is written down."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Task[None]] = {}

    async def join(self, response_id: str, cancel: Callable[[], Coroutine[None, None, None]]) -> None:
        """Return once the response's cancellation has ended; `cancel` is called when there is none yet."""
        task = self._under_way.get(response_id)
        if task is None:
            task = self.begin(response_id, cancel())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            raise ServerStoppingError("The server stops; the next process cancels the response.") from None

    def begin(self, response_id: str, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        """End a response under a claim of its own; a cancellation that comes meanwhile joins in."""
        task = asyncio.create_task(work, name=f"end {response_id}")
        self._under_way[response_id] = task
        task.add_done_callback(lambda ended: self._forget(response_id, ended))
        return task

    async def close(self) -> None:
        """Break off what is still under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, response_id: str, ended: asyncio.Task[None]) -> None:
        if self._under_way.get(response_id) is ended:
            del self._under_way[response_id]
        if not ended.cancelled():
            ended.exception()  # seen, even when nobody waits any more
