"""Cancellations under way in this process: one per response, joined by everybody who asks for it.

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
            task = asyncio.create_task(cancel(), name=f"cancel {response_id}")
            self._under_way[response_id] = task
            task.add_done_callback(lambda ended: self._forget(response_id, ended))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            raise ServerStoppingError("The server stops; the next process cancels the response.") from None

    async def close(self) -> None:
        """Break off what is still under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, response_id: str, ended: asyncio.Task[None]) -> None:
        del self._under_way[response_id]
        if not ended.cancelled():
            ended.exception()  # seen, even when nobody waits any more
