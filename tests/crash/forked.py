"""A server as a child process that starts in milliseconds: its imports are done before it is forked.

The same engine, application and uvicorn as `antiphon serve`, and options that the command line does not have.
The listening socket is ours and outlives the process, as under systemd: whoever connects between a death
and the next start waits instead of being refused.
"""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

READY_WITHIN_S = 60.0

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["__main__", "antiphon.cli.process", "antiphon.testing.effect_ledger"])


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a server is made of; `durability` as for `Durability`, `environment` for its tools."""

    directory: str
    upstream_url: str
    environment: dict[str, str]
    tools: str = "crash.tools"
    durability: dict[str, Any] = msgspec.field(default_factory=dict)
    keepalive_s: float = 15.0


class ForkedServer:
    """As `ServerProcess`: `url`, `start`, `kill`, `ended`."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._process: ForkServerProcess | None = None
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            await self.kill()
        self._listener.close()

    @property
    def pid(self) -> int:
        """The process id of the newest process."""
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    async def start(self, **environment: str) -> None:
        """Start, and wait until it serves; raises when it ends before that."""
        if not await self._launch(environment):
            raise RuntimeError(f"the server ended with {await self.ended()} before it served")

    async def start_to_die(self, **environment: str) -> int:
        """Start a process that will end by itself; its exit code."""
        await self._launch(environment)
        return await self.ended()

    async def kill(self) -> int:
        """SIGKILL, and the exit code that proves it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return await self.ended()

    async def ended(self, within_s: float = READY_WITHIN_S) -> int:
        """Wait until the process has ended; its exit code."""
        process = self._process
        assert process is not None
        await asyncio.wait_for(_readable(process.sentinel), within_s)
        await asyncio.to_thread(process.join)
        assert process.exitcode is not None
        return process.exitcode

    async def _launch(self, environment: dict[str, str]) -> bool:
        ours, its = _forks.Pipe(duplex=False)
        options = msgspec.structs.replace(
            self.options, environment={**self.options.environment, **environment}
        )
        self._process = _forks.Process(target=serve, args=(self._listener, options, its), daemon=True)
        await asyncio.to_thread(self._process.start)
        its.close()
        with ours:
            await asyncio.wait_for(_readable(ours.fileno()), READY_WITHIN_S)
            try:
                return bool(ours.recv())
            except EOFError:
                return False


def serve(listener: socket.socket, options: Options, ready: Connection) -> None:
    """The child: serve until killed."""
    import uvloop

    os.environ.update(options.environment)
    log = Path(options.directory) / "server.log"
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    uvloop.run(_serve(listener, options, ready))


async def _serve(listener: socket.socket, options: Options, ready: Connection) -> None:
    from importlib import import_module

    import uvicorn

    from antiphon import Durability, Engine, ServerOptions, create_app
    from antiphon.cli.logs import configure_logs
    from antiphon.cli.settings import LogSettings
    from antiphon.testing.crash_points import arm_from_environment
    from antiphon.tools.function import tool_of

    configure_logs(LogSettings())
    arm_from_environment()
    found = vars(import_module(options.tools)).values()
    engine = Engine(
        store=f"sqlite:///{options.directory}/journal.db",
        upstream=options.upstream_url,
        tools=[each for each in found if tool_of(each) is not None],
        durability=Durability(**options.durability),
    )
    async with engine:
        app = create_app(engine, ServerOptions(keepalive_s=options.keepalive_s))
        server = uvicorn.Server(
            uvicorn.Config(
                app, http="httptools", ws="none", lifespan="off", log_level="warning", access_log=False
            )
        )
        ready.send(True)
        await server.serve(sockets=[listener])


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(descriptor)
