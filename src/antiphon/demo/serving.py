"""The demo's server: `antiphon serve` in a child process that can be killed and started again."""

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from antiphon.demo.failure import DemoFailed
from antiphon.demo.tools import LEDGER_VARIABLE
from antiphon.testing.server_process import ServerDiedError, ServerProcess

_READY_WITHIN_S = 15.0
_DURABILITY = "ANTIPHON_DURABILITY__"


class DemoServer:
    """A server on its own store in `directory`. Everything in it survives `kill`; leaving ends it."""

    def __init__(self, directory: Path, upstream_url: str) -> None:
        self.ledger_path = directory / "ledger.jsonl"
        arguments = [
            "-m", "antiphon", "serve", upstream_url,
            "--store", f"sqlite:///{directory / 'demo.db'}",
            "--tools", "antiphon.demo.tools",
        ]  # fmt: skip
        # How durable it is may be set from outside; nothing else of the user's settings is this server's.
        durability = {name: value for name, value in os.environ.items() if name.startswith(_DURABILITY)}
        self._process = ServerProcess(
            arguments,
            directory=directory,
            environment={**durability, LEDGER_VARIABLE: str(self.ledger_path)},
            ready_within_s=_READY_WITHIN_S,
        )

    @property
    def url(self) -> str:
        """Its address, the same after every start."""
        return self._process.url

    @property
    def pid(self) -> int:
        """The process id of the newest process."""
        return self._process.pid

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._process.__aexit__(kind, error, trace)

    async def start(self) -> None:
        """Start, on a free port first and on the same one afterwards, and wait until it listens."""
        try:
            await self._process.start()
        except ServerDiedError as died:
            raise DemoFailed(str(died)) from died
        except TimeoutError as late:
            raise DemoFailed(f"the server did not start within {_READY_WITHIN_S:.0f} s.") from late

    async def kill(self) -> int:
        """SIGKILL, and the exit code that proves it: the process has no chance to save anything."""
        return await self._process.kill()
