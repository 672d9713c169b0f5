"""Many streams at once on one server process: are events lost or out of order, and what does it cost?

    python benchmarks/streams.py --streams 200 --rate 20 --seconds 20

Three processes: a paced model server, `antiphon serve` on an SQLite file, and this reader, which checks
every event of every stream. Exit code 1 when anything was lost, out of order, or said otherwise.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
START_WITHIN_S = 20.0


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def memory_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextlib.asynccontextmanager
async def started(*command: str, directory: Path, marker: str) -> AsyncIterator[tuple[Process, str]]:
    """A process, and the URL that it prints after `marker`; ended afterwards."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ANTIPHON_", "OPENAI_"))}
    with (directory / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=directory, env=environment, stdout=PIPE, stderr=log
        )
    draining = None
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_WITHIN_S):
            line = (await process.stdout.readline()).decode()
            while marker not in line:
                if not line:
                    raise SystemExit(f"{command} ended:\n{(directory / 'log').read_text()}")
                line = (await process.stdout.readline()).decode()
        draining = asyncio.create_task(process.stdout.read())
        yield process, line.removeprefix(marker).strip()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        if draining is not None:
            await draining


class Reading:
    """What was found in one stream."""

    def __init__(self) -> None:
        self.events = 0
        self.lost = 0
        self.disordered = 0
        self.text = ""
        self.ending = ""

    def take(self, event: dict[str, Any]) -> None:
        number = event["sequence_number"]
        if number < self.events:
            self.disordered += 1
        else:
            self.lost += number - self.events
            self.events = number + 1
        if event["type"] == "response.output_text.delta":
            self.text += event["delta"]
        self.ending = event["type"]


async def read(session: aiohttp.ClientSession, number: int) -> Reading:
    """One stream from its first event to its end."""
    reading = Reading()
    body = {"model": "fake", "input": f"stream {number}", "stream": True}
    async with session.post("/v1/responses", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if line.startswith(b"data: {"):
                reading.take(json.loads(line[6:]))
    return reading


async def measure(streams: int, rate: float, seconds: float) -> dict[str, Any]:
    """Run it, and what came of it."""
    words = int(rate * seconds)
    text = " ".join(f"w{n}" for n in range(words))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        script = {"kind": "answer", "text": text, "varied": False}
        (directory / "script.json").write_text(json.dumps(script))
        async with contextlib.AsyncExitStack() as stack:
            _, upstream_url = await stack.enter_async_context(
                started(
                    sys.executable, "-m", "antiphon.testing.fake_upstream", "--script", "script.json",
                    "--pace", str(1 / rate), directory=directory, marker="",
                )
            )  # fmt: skip
            server, url = await stack.enter_async_context(
                started(
                    sys.executable, "-m", "antiphon", "serve", upstream_url + "/v1", "--port", "0",
                    "--store", f"sqlite:///{directory / 'streams.db'}",
                    directory=directory, marker="listening on ",
                )
            )  # fmt: skip
            connector = aiohttp.TCPConnector(limit=0)
            session = await stack.enter_async_context(
                aiohttp.ClientSession(url, connector=connector, timeout=aiohttp.ClientTimeout(total=None))
            )
            idle_mib = memory_mib(server.pid)
            cpu_before, began = cpu_seconds(server.pid), time.monotonic()
            reading = asyncio.gather(*(read(session, number) for number in range(streams)))
            most_mib = idle_mib
            while not reading.done():
                await asyncio.wait({reading}, timeout=0.5)
                most_mib = max(most_mib, memory_mib(server.pid))
            took_s = time.monotonic() - began
            cpu_s = cpu_seconds(server.pid) - cpu_before
            readings = reading.result()
    events = sum(each.events for each in readings)
    return {
        "streams": streams,
        "events": events,
        "events lost": sum(each.lost for each in readings),
        "events out of order": sum(each.disordered for each in readings),
        "texts that differ": sum(each.text != text for each in readings),
        "streams without their end": sum(each.ending != "response.completed" for each in readings),
        "seconds": round(took_s, 2),
        "seconds if never late": round(seconds, 2),
        "events per second": round(events / took_s),
        "server CPU seconds": round(cpu_s, 2),
        "server CPU of one core": f"{cpu_s / took_s:.0%}",
        "server CPU per event, µs": round(cpu_s / events * 1e6, 1),
        "memory per stream, KiB": round((most_mib - idle_mib) * 1024 / streams, 1),
    }


def main() -> None:
    """Measure, print, and say by the exit code whether anything went missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rate", type=float, default=20.0, help="events per second and stream")
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments.streams, arguments.rate, arguments.seconds))
    for name, value in found.items():
        print(f"{name:28} {value}")
    wrong = ("events lost", "events out of order", "texts that differ", "streams without their end")
    sys.exit(any(found[name] for name in wrong))


if __name__ == "__main__":
    main()
