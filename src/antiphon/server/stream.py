"""Event streams on HTTP.

Frames go out as the engine gives them, each whole, several in one write. Between them a comment every
`keepalive_s` seconds. After the terminal event comes `data: [DONE]`. A stream that must be taken up again
with its cursor is cut, not ended: a client that sees a clean end may trust it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Self

from starlette.types import Receive, Scope, Send

from antiphon.domain.errors import Error
from antiphon.engine.handle import ResponseHandle
from antiphon.observe import metrics
from antiphon.observe.logs import get_logger

log = get_logger("antiphon.server")

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
KEEPALIVE = b": keepalive\n\n"
DONE = b"data: [DONE]\n\n"


class EventStream:
    """The ASGI answer that carries one response's events from a cursor to the end."""

    def __init__(self, handle: ResponseHandle, *, after: int, keepalive_s: float) -> None:
        self._handle = handle
        self._after = after
        self._keepalive_s = keepalive_s
        self._whole = False
        self._left_early = False

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the terminal event, or until the client is gone."""
        headers = [*HEADERS, (b"x-antiphon-response-id", self._handle.response_id.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        frames = self._handle.frames(self._after)
        sending = asyncio.create_task(self._send_all(frames, send))
        watching = asyncio.create_task(self._until_gone(receive))
        metrics.READERS.inc()
        try:
            with self._handle.reading() as connection:
                await asyncio.wait({sending, watching}, return_when=asyncio.FIRST_COMPLETED)
                connection.closed_by_us = sending.done()
                await _end(sending)
                if self._whole and not self._left_early:
                    self._handle.delivered()
        finally:
            metrics.READERS.dec()
            await _end(watching)
            await _end(sending)
            self._handle.leave()

    async def _send_all(self, frames: AsyncIterator[bytes], send: Send) -> None:
        async with _Keepalive(send, self._keepalive_s) as keepalive:
            try:
                async for several in frames:
                    keepalive.postpone()
                    await send({"type": "http.response.body", "body": several, "more_body": True})
            except Error as error:  # cut, or nothing more can be had here
                log.info("stream_cut", response_id=self._handle.response_id, reason=error.code)
                return  # the answer stays unfinished: the server closes the connection
        self._whole = True  # before the last write: after it the server reports every client as gone
        await send({"type": "http.response.body", "body": DONE, "more_body": False})

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._left_early = not self._whole


class _Keepalive:
    """Sends a comment whenever nothing else was sent for a while."""

    def __init__(self, send: Send, pause_s: float) -> None:
        self._send = send
        self._pause_s = pause_s
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._timer = self._loop.call_later(self._pause_s, self._due)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await _end(self._task)

    def postpone(self) -> None:
        """Something was sent."""
        self._last = self._loop.time()

    def _due(self) -> None:
        quiet_s = self._loop.time() - self._last
        if quiet_s >= self._pause_s and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._comment())
            quiet_s = 0.0
        self._timer = self._loop.call_later(self._pause_s - quiet_s, self._due)

    async def _comment(self) -> None:
        self.postpone()
        await self._send({"type": "http.response.body", "body": KEEPALIVE, "more_body": True})


async def _end(task: "asyncio.Task[None]") -> None:
    """Cancel a task unless it has ended, and pass on what it raised."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
