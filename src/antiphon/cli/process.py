"""The server's process: socket, event loop, signals, logs, and what is printed when it is ready."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence

import uvicorn

from antiphon.cli.failure import CommandFailed, as_failure
from antiphon.cli.loading import Configuration
from antiphon.cli.logs import configure_logs
from antiphon.cli.settings import Settings
from antiphon.cli.startup import print_startup
from antiphon.cli.wiring import durability_of, limits_of, router_of
from antiphon.domain.errors import Error
from antiphon.engine.engine import Engine
from antiphon.server import ServerOptions, create_app
from antiphon.tools.function import FunctionTool

_BACKLOG = 2048
_LISTING_WITHIN_S = 2.0
_CLOSE_CONNECTIONS_AFTER_S = 2.0
"""After the engine's own grace: whoever still waits then is sent away."""
_FIRST_INHERITED_FD = 3
_IDLE_CONNECTIONS_S = 75  # longer than clients keep theirs, so that it is never we who close first
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_server(configuration: Configuration, tools: Sequence[FunctionTool]) -> None:
    """Serve until SIGTERM or SIGINT. Raises `CommandFailed` when the port or the store cannot be had."""
    settings = configuration.settings
    configure_logs(settings.log)
    if "ANTIPHON_CRASH_AT" in os.environ:
        from antiphon.testing.crash_points import arm_from_environment

        arm_from_environment()
    with contextlib.closing(listening_socket(settings.server.host, settings.server.port)) as listener:
        if sys.platform == "win32":
            asyncio.run(_serve(settings, tools, listener))
        else:
            import uvloop

            uvloop.run(_serve(settings, tools, listener))


async def _serve(settings: Settings, tools: Sequence[FunctionTool], listener: socket.socket) -> None:
    async with contextlib.AsyncExitStack() as stack:
        router = router_of(settings)
        stack.push_async_callback(router.close)
        engine = Engine(
            store=settings.store,
            upstream=router,
            tools=tools,
            limits=limits_of(settings),
            durability=durability_of(settings),
        )
        try:
            await stack.enter_async_context(engine)
        except Error as error:
            raise CommandFailed(f"The store {settings.store}: {as_failure(error)}") from error
        server = _Server(
            _uvicorn_config(settings, engine),
            on_ready=lambda: _announce(settings, address_of(listener), tools, engine),
            on_stop=engine.begin_stop,
        )
        await server.serve(sockets=[listener])


def _uvicorn_config(settings: Settings, engine: Engine) -> uvicorn.Config:
    options = ServerOptions(
        api_keys=tuple(key.get_secret_value() for key in settings.server.api_keys),
        max_body_bytes=settings.server.max_body,
        unknown_tools=settings.server.unknown_tools,
    )
    return uvicorn.Config(
        create_app(engine, options),
        http="httptools",
        ws="none",
        lifespan="off",  # the engine is entered above, where what stops it can be told in one paragraph
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=_IDLE_CONNECTIONS_S,
        timeout_graceful_shutdown=round(engine.durability.shutdown_grace_s + _CLOSE_CONNECTIONS_AFTER_S),
    )


async def _announce(settings: Settings, address: str, tools: Sequence[FunctionTool], engine: Engine) -> None:
    """Say where the server is at once, and the rest when the upstreams have listed their models."""
    with contextlib.suppress(BrokenPipeError):  # whoever reads our output may have left
        print(f"listening on {address}", flush=True)
        models: list[str] = []
        with contextlib.suppress(TimeoutError, Error):  # the table says that nothing has answered
            models = await asyncio.wait_for(engine.models(), _LISTING_WITHIN_S)
        print_startup(settings, address, [tool.schema for tool in tools], models)


class _Server(uvicorn.Server):
    """Says when it listens, and stops the engine's work as soon as it is told to stop.

    A signal ends it with exit code 0: that is how a server is meant to end.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        on_ready: Callable[[], Coroutine[None, None, None]],
        on_stop: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._on_stop = on_stop
        self._announcing: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announcing = asyncio.create_task(self._on_ready())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._announcing is not None:
            self._announcing.cancel()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        if sys.platform == "win32":
            with super().capture_signals():
                yield
            return
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self._told_to_stop, number)
        try:
            yield
        finally:
            for number in _STOP_SIGNALS:
                loop.remove_signal_handler(number)

    def _told_to_stop(self, number: int) -> None:
        # Streams are cut now, so that their readers go to the next process instead of waiting for this one.
        self._on_stop()
        self.handle_exit(number, None)


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket bound to this address, or `CommandFailed` saying who is in the way.

    A socket that the service manager holds for us (systemd socket activation: `LISTEN_PID`, `LISTEN_FDS`)
    is taken as it is: it stays open across restarts, so that no client finds the door closed.
    """
    if os.environ.get("LISTEN_PID") == str(os.getpid()) and os.environ.get("LISTEN_FDS") == "1":
        return socket.socket(fileno=_FIRST_INHERITED_FD)
    try:
        found = socket.getaddrinfo(
            host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # A name such as localhost may have both: most clients try 127.0.0.1.
        family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        match error.errno:
            case errno.EADDRINUSE:
                message = (
                    f"Port {port} on {host} is in use, perhaps by another Antiphon. "
                    "Stop that program, or choose another port with --port (0 picks a free one)."
                )
            case errno.EACCES:
                message = f"Port {port} on {host} is not for this user; choose one above 1023 with --port."
            case _:
                message = (
                    f"Cannot listen on {host}: {error.strerror or error}. Give an address of this machine."
                )
        raise CommandFailed(message) from error


def address_of(listener: socket.socket) -> str:
    """The URL under which this machine reaches the socket."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared with, not listened on
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
