"""The rehearsal model on a port of this machine, inside the running event loop.

Real sockets and a real HTTP server, so that nothing about the way to a model is pretended. Signals are
left to whoever owns the process.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Self

import uvicorn

from antiphon.upstream.rehearsal.app import create_rehearsal_app

_GRACE_S = 1


class RehearsalServer:
    """`async with RehearsalServer() as server:` serves at `server.url` until the block ends.

    Listens on 127.0.0.1, on a free port unless `port` says which.
    """

    def __init__(self, pace_s: float = 0.03, *, port: int = 0) -> None:
        self.url = ""
        self._port = port
        config = uvicorn.Config(
            create_rehearsal_app(pace_s),
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", self._port))
        except OSError:
            listening.close()
            raise
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        self._serving = asyncio.create_task(self._server.serve([listening]), name="rehearsal server")
        started = asyncio.create_task(self._server.ready.wait())
        try:
            await asyncio.wait({started, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            started.cancel()
        if self._serving.done():
            await self._serving
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the process, not to a guest in it."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Hang up on answers in progress: their handlers then end by themselves, and at once."""
        for connection in list(self.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()
        await super().shutdown(sockets)
