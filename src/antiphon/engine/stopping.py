"""Stopping a run gently: no new step starts, what may be broken off is, the rest may end.

Model calls and `pure` tools may always be broken off. `idempotent` ones only when the work is handed
back to be run again with the same key; `once` tools never.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from antiphon.domain.errors import Error


class RunStoppedError(Error):
    """The loop was asked to stop and did; `reason` says why. Nothing is in flight."""

    default_code = "stopped"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class StopSignal:
    """Asked once, obeyed by every step of a run."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._break_keyed = False
        self._breakable: dict[asyncio.Task[object], bool] = {}

    def request(self, reason: str, *, break_keyed: bool = False) -> None:
        """Ask for the stop: breakable steps are cancelled at once, others end on their own.

        `break_keyed` also breaks off calls of idempotent tools.
        """
        if self.reason is None:
            self.reason = reason
            self._break_keyed = break_keyed
            for task, keyed in self._breakable.items():
                if break_keyed or not keyed:
                    task.cancel()

    def check(self) -> None:
        """Raise `RunStoppedError` when asked to stop: called before a step starts."""
        if self.reason is not None:
            raise RunStoppedError(self.reason)

    @contextmanager
    def breakable(self, *, keyed: bool = False) -> Iterator[None]:
        """The block may be broken off by a stop, which then leaves it as `RunStoppedError`."""
        self.check()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("not in a task")
        self._breakable[task] = keyed
        try:
            yield
        except asyncio.CancelledError:
            if self.reason is None or task.uncancel() > 0:
                raise
            raise RunStoppedError(self.reason) from None
        finally:
            del self._breakable[task]
