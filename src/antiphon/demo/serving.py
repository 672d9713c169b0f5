"""The demo's server: `antiphon serve` in a child process that can be killed and started again."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from types import TracebackType
from typing import Self

from antiphon.demo.failure import DemoFailed
from antiphon.demo.tools import LEDGER_VARIABLE

_LISTENING = b"listening on "
_READY_WITHIN_S = 15.0
_STOP_WITHIN_S = 5.0
_DURABILITY = "ANTIPHON_DURABILITY__"


class DemoServer:
    """A server on its own store in `directory`. Everything in it survives `kill`; leaving ends it."""

    def __init__(self, directory: Path, upstream_url: str) -> None:
        self.ledger_path = directory / "ledger.jsonl"
        self.url = ""
        self.pid = 0
        self._directory = directory
        self._upstream_url = upstream_url
        self._port = 0
        self._process: Process | None = None
        self._output: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), _STOP_WITHIN_S)
            except TimeoutError:
                self._process.kill()
        await self._ended()

    async def start(self) -> None:
        """Start, on a free port first and on the same one afterwards, and wait until it listens."""
        with (self._directory / "server.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self._command(), cwd=self._directory, env=self._environment(), stdout=PIPE, stderr=log
            )
        try:
            self.url = await asyncio.wait_for(self._address(process), _READY_WITHIN_S)
        except TimeoutError as error:
            await _kill(process)
            raise DemoFailed(
                f"the server did not start within {_READY_WITHIN_S:.0f} s.{self._last_words()}"
            ) from error
        except BaseException:
            await _kill(process)
            raise
        self._process, self.pid = process, process.pid
        self._port = int(self.url.rpartition(":")[2])
        self._output = asyncio.create_task(_drain(process))

    async def kill(self) -> int:
        """SIGKILL, and the exit code that proves it: the process has no chance to save anything."""
        if self._process is None:
            raise DemoFailed("there is no server to kill.")
        self._process.kill()
        return await self._ended()

    async def _ended(self) -> int:
        if self._process is None:
            return 0
        exit_code = await self._process.wait()
        if self._output is not None:
            await self._output
        return exit_code

    async def _address(self, process: Process) -> str:
        if process.stdout is None:
            raise DemoFailed("the server's output cannot be read.")
        async for line in process.stdout:
            if line.startswith(_LISTENING):
                return line.removeprefix(_LISTENING).decode().strip()
        raise DemoFailed(f"the server ended before it listened.{self._last_words()}")

    def _command(self) -> list[str]:
        return [
            sys.executable, "-m", "antiphon", "serve", self._upstream_url,
            "--port", str(self._port),
            "--store", f"sqlite:///{self._directory / 'demo.db'}",
            "--tools", "antiphon.demo.tools",
        ]  # fmt: skip

    def _environment(self) -> dict[str, str]:
        """The user's environment without settings of other servers; how durable it is may be set."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ANTIPHON_", "OPENAI_")) or name.startswith(_DURABILITY)
        }
        return {**kept, LEDGER_VARIABLE: str(self.ledger_path)}

    def _last_words(self) -> str:
        log = self._directory / "server.log"
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return f" Its last words: {lines[-1]}" if lines else ""


async def _kill(process: Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


async def _drain(process: Process) -> None:
    """Read the rest of the output, so that the server never waits for us to do so."""
    if process.stdout is not None:
        while await process.stdout.read(65536):
            pass
