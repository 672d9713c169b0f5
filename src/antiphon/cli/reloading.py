"""A server that starts again whenever its files change.

The server is a child process: SIGTERM lets it hand its work back, and the next one takes it up. The
rehearsal model, where it is needed, lives here, so that it does not restart with the server.
"""

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

from watchfiles import Change, DefaultFilter, awatch

from antiphon.cli.detection import find_local_server
from antiphon.cli.failure import CommandFailed
from antiphon.cli.flags import Flags
from antiphon.cli.loading import DEFAULT_FILE, load
from antiphon.upstream.rehearsal import RehearsalServer

_STOP_WITHIN_S = 15.0
_DEBOUNCE_MS = 200


async def develop(flags: Flags) -> None:
    """Serve and restart until SIGINT or SIGTERM."""
    async with contextlib.AsyncExitStack() as stack:
        url = await _upstream_url(flags, stack)
        command = serve_command(flags, url)
        stopping = stack.enter_context(_stop_signal())
        await keep_running(command, _changes(watched(flags), stopping), stopping)


async def keep_running(command: list[str], changes: AsyncIterator[object], stopping: asyncio.Event) -> None:
    """Run the command, and again after each change, until `stopping` is set."""
    stop = asyncio.ensure_future(stopping.wait())
    change = asyncio.ensure_future(anext(changes, None))
    try:
        while not stopping.is_set():
            child = await asyncio.create_subprocess_exec(*command)
            ended = asyncio.ensure_future(child.wait())
            try:
                await asyncio.wait({ended, change, stop}, return_when=asyncio.FIRST_COMPLETED)
                if ended.done() and not change.done() and not stop.done():
                    _say(f"the server ended with exit code {ended.result()}; waiting for a file to change")
                    await asyncio.wait({change, stop}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end(child)
            if change.done() and not stopping.is_set():
                _say(f"{_names(change.result())} changed; starting again")
                change = asyncio.ensure_future(anext(changes, None))
    finally:
        stop.cancel()
        change.cancel()
        await asyncio.gather(stop, change, return_exceptions=True)


async def end(child: Process) -> None:
    """Ask a process to stop, and make it stop when it does not."""
    with contextlib.suppress(ProcessLookupError):
        if child.returncode is None:
            child.terminate()
        try:
            await asyncio.wait_for(child.wait(), _STOP_WITHIN_S)
        except TimeoutError:
            child.kill()
            await child.wait()


def serve_command(flags: Flags, upstream_url: str | None) -> list[str]:
    """The command line of the child."""
    command = [sys.executable, "-m", "antiphon", "serve"]
    if upstream_url is not None:
        command.append(upstream_url)
    for flag, value in (("--port", flags.port), ("--store", flags.store)):
        if value is not None:
            command += [flag, str(value)]
    for source in flags.tools:
        command += ["--tools", source]
    return command


def watched(flags: Flags) -> set[Path]:
    """The working directory, and those of tools that lie elsewhere."""
    return {Path.cwd(), *(Path(each).resolve().parent for each in flags.tools)}


class SourceFilter(DefaultFilter):
    """Python files and the configuration; not what tools and editors write beside them."""

    def __call__(self, change: Change, path: str) -> bool:
        """Whether a change of this path is one of ours."""
        file = Path(path)
        return (file.suffix == ".py" or file.name == DEFAULT_FILE.name) and super().__call__(change, path)


async def _upstream_url(flags: Flags, stack: contextlib.AsyncExitStack) -> str | None:
    """None when the configuration names an upstream; else a local server's, or the rehearsal model's."""
    settings = load(flags).settings
    if settings.upstreams:
        return None
    found = await find_local_server(except_port=settings.server.port)
    if found is not None:
        _say(f"found {found.name} at {found.url} with {', '.join(found.models[:3])}")
        return found.url
    rehearsal = await stack.enter_async_context(RehearsalServer())
    _say(
        "no model server answers on the usual local ports, so the built-in rehearsal model does, under the "
        "name `rehearsal`. It only plays a model: it calls the tools that you name, and streams words. "
        "For a real one: antiphon serve URL"
    )
    return rehearsal.url


@contextlib.contextmanager
def _stop_signal() -> Iterator[asyncio.Event]:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(stopping.set))
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _changes(directories: Iterable[Path], stopping: asyncio.Event) -> AsyncIterator[object]:
    try:
        async for changed in awatch(
            *directories, watch_filter=SourceFilter(), stop_event=stopping, debounce=_DEBOUNCE_MS
        ):
            yield changed
    except (OSError, RuntimeError) as error:  # such as the system's limit of watched files
        raise CommandFailed(f"The files here cannot be watched: {error}. Use `antiphon serve`.") from error


def _names(changed: object) -> str:
    paths = sorted({Path(path).name for _, path in changed}) if isinstance(changed, set) else []
    return ", ".join(paths[:3]) or "a file"


def _say(message: str) -> None:
    print(f"antiphon dev: {message}", file=sys.stderr, flush=True)
