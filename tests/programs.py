"""The command line as real processes: started, read line by line with a deadline, and always ended."""

import asyncio
import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from antiphon.upstream.rehearsal import RehearsalServer

ANTIPHON = [sys.executable, "-m", "antiphon"]

STARTS_WITHIN_S = 20.0
ENDS_WITHIN_S = 20.0


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without the settings of anybody's servers."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("ANTIPHON_", "OPENAI_"))
    }
    return {**kept, "PYTHONUNBUFFERED": "1", **more}


def run(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end. No command may show a traceback."""
    done = subprocess.run(
        [*ANTIPHON, *arguments],
        cwd=cwd,
        env=clean_environment(**environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@contextlib.contextmanager
def rehearsal_model(pace_s: float = 0.005) -> Iterator[str]:
    """The address of a rehearsal model that another thread serves."""
    started: queue.Queue[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

    async def serve() -> None:
        async with RehearsalServer(pace_s) as server:
            over = asyncio.Event()
            started.put((server.url, asyncio.get_running_loop(), over))
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    address, loop, over = started.get(timeout=STARTS_WITHIN_S)
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(ENDS_WITHIN_S)


class Program:
    """A command that runs until it is told to stop. `lines` keeps what it printed, on both outputs."""

    def __init__(self, *arguments: str, cwd: Path, **environ: str) -> None:
        self.lines: list[str] = []
        self._arrived: queue.Queue[str | None] = queue.Queue()
        self._process = subprocess.Popen(
            [*ANTIPHON, *arguments],
            cwd=cwd,
            env=clean_environment(**environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait(ENDS_WITHIN_S)
        self._reading.join(ENDS_WITHIN_S)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def wait_for(self, text: str, timeout_s: float = STARTS_WITHIN_S) -> str:
        """The next line that holds this text."""
        while True:
            try:
                line = self._arrived.get(timeout=timeout_s)
            except queue.Empty:
                raise AssertionError(f"no line with {text!r} came; there were: {self.lines}") from None
            if line is None:
                raise AssertionError(f"it ended without a line with {text!r}; there were: {self.lines}")
            if text in line:
                return line

    def address(self) -> str:
        """The address in the next `listening on` line."""
        return self.wait_for("listening on ").partition("listening on ")[2]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and give the exit code."""
        self._process.send_signal(number)
        return self._process.wait(ENDS_WITHIN_S)

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.lines.append(line.rstrip("\n"))
            self._arrived.put(line.rstrip("\n"))
        self._arrived.put(None)
