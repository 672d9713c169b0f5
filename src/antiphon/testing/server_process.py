"""A server in a child process, to be killed and started again on the same port and the same files.

    async with ServerProcess(["-m", "antiphon", "serve", UPSTREAM, …], directory=DIR) as server:
        ...                      # talk to server.url
        await server.kill()      # SIGKILL: the process saves nothing
        await server.start()     # the next process, under the same address

Any Python program will do that takes `--port` and prints `listening on http://…` when it is ready. Leaving
the block ends the process. Standard error goes to `server.log` in the directory, of all processes in turn.
"""

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from antiphon.domain.errors import Error

READY_WITHIN_S = 60.0
ENDED_WITHIN_S = 30.0

_LISTENING = b"listening on "
_FOREIGN = ("ANTIPHON_", "OPENAI_")


class ServerDiedError(Error):
    """The process ended before it listened; `exit_code` says how, negative for a signal."""

    def __init__(self, exit_code: int, last_words: str) -> None:
        super().__init__(f"the server ended with {exit_code} before it listened. {last_words}".rstrip())
        self.exit_code = exit_code


class ServerProcess:
    """The server that `arguments` start, given to this Python.

    `environment` is added to ours, from which other servers' settings are taken out.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        directory: Path,
        environment: Mapping[str, str] | None = None,
        ready_within_s: float = READY_WITHIN_S,
    ) -> None:
        self.url = ""
        self.log_path = directory / "server.log"
        self._arguments = list(arguments)
        self._directory = directory
        self._environment = dict(environment or {})
        self._ready_within_s = ready_within_s
        self._port = 0
        self._process: Process | None = None
        self._drain: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_alive:
            await self.kill()

    @property
    def is_alive(self) -> bool:
        """Whether a process was started and has not ended, as far as is known."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """The process id of the newest process."""
        return self._newest().pid

    async def start(self, **environment: str) -> None:
        """Start and wait until it listens; `environment` holds for this process only.

        Raises `ServerDiedError` when it ends before that.
        """
        process = await self._launch(environment)
        try:
            self.url = await asyncio.wait_for(self._address(process), self._ready_within_s)
        except TimeoutError:
            process.kill()
            raise
        self._port = int(self.url.rpartition(":")[2])
        self._drain = asyncio.create_task(_read_on(process))

    async def start_to_die(self, **environment: str) -> int:
        """Start a process that will end by itself, perhaps before it listens; its exit code."""
        with contextlib.suppress(ServerDiedError):
            await self.start(**environment)
        return await self.ended()

    async def kill(self) -> int:
        """SIGKILL, and the exit code that proves it."""
        with contextlib.suppress(ProcessLookupError):
            self._newest().kill()
        return await self.ended()

    async def terminate(self) -> int:
        """SIGTERM, and the exit code after whatever the server does about it."""
        self._newest().terminate()
        return await self.ended()

    async def ended(self, within_s: float = ENDED_WITHIN_S) -> int:
        """Wait until the process has ended by whatever cause; its exit code. Raises `TimeoutError`."""
        exit_code = await asyncio.wait_for(self._newest().wait(), within_s)
        if self._drain is not None:
            await self._drain
        return exit_code

    def _newest(self) -> Process:
        if self._process is None:
            message = "the server was never started"
            raise RuntimeError(message)
        return self._process

    async def _launch(self, environment: Mapping[str, str]) -> Process:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self._arguments,
                "--port",
                str(self._port),
                cwd=self._directory,
                env={**kept, **self._environment, **environment},
                stdout=PIPE,
                stderr=log,
            )
        return self._process

    async def _address(self, process: Process) -> str:
        if process.stdout is not None:
            async for line in process.stdout:
                if line.startswith(_LISTENING):
                    return line.removeprefix(_LISTENING).decode().strip()
        raise ServerDiedError(await process.wait(), self._last_words())

    def _last_words(self) -> str:
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return f"Its last words: {lines[-1]}" if lines else ""


async def _read_on(process: Process) -> None:
    """Read the rest of the output, so that the server never waits for us to do so."""
    if process.stdout is not None:
        while await process.stdout.read(65536):
            pass
