"""The proof by SIGKILL: `python scripts/torture.py --kills 100`.

`antiphon serve` is killed at random moments while it works on responses of 6 model calls with 3 parallel
tools each (pure, idempotent, once), and started again, until so many kills have hit a step in flight.
Prints what was hit and what was checked; exit code 1 when anything that Antiphon promises did not hold.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from antiphon.testing import loop_script
from crash.kill_loop import Goal, Tally, kill_at_random
from crash.world import THREE_EFFECTS, served_world

_LEAST_OF_EACH = 30


def main() -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100, help="kills that hit a step in flight")
    parser.add_argument("--parallel", type=int, default=1, help="responses at work at the same time")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--directory", type=Path, help="keeps database, ledger and log; else a temporary one")
    arguments = parser.parse_args()
    least = min(_LEAST_OF_EACH, arguments.kills // 3)
    goal = Goal(kills=arguments.kills, model=least, tool=least, parallel=arguments.parallel)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="antiphon-torture-") as temporary:
        directory = arguments.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        tally = asyncio.run(_torture(directory, goal, arguments.seed))
    print(table(tally, seed=arguments.seed, took_s=time.monotonic() - began))
    for violation in tally.violations:
        print(f"VIOLATION {violation}")
    return 1 if tally.violations else 0


async def _torture(directory: Path, goal: Goal, seed: int) -> Tally:
    script = loop_script(model_calls=6, tools=THREE_EFFECTS, per_turn=3)
    async with served_world(directory, script, pace_s=0.01, tool_pace=1.0) as world:
        tally = await kill_at_random(world, goal, seed=seed, told=_show)
    log = (directory / "server.log").read_text()
    complaints = [line for line in log.splitlines() if "Traceback" in line or '"level": "error"' in line]
    tally.violations += [f"the server's log: {line}" for line in complaints]
    return tally


def _show(tally: Tally) -> None:
    sys.stderr.write(f"\r{tally.kills.total()} kills, {tally.hits} hits, {tally.responses} responses ended ")
    sys.stderr.flush()


def table(tally: Tally, *, seed: int, took_s: float) -> str:
    """The figures as a Markdown table."""
    rows = {
        "kills": tally.kills.total(),
        "… that hit a model call": tally.kills["model"] + tally.kills["both"],
        "… that hit a tool call": tally.kills["tool"] + tally.kills["both"],
        "… that hit nothing (not counted)": tally.kills["nothing"],
        "`once` calls in flight at a kill": tally.once_in_flight,
        "responses, all completed" if not tally.violations else "responses": tally.responses,
        **tally.counts,
        "violations": len(tally.violations),
    }
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return "\n".join([f"\n| seed {seed}, {took_s:.0f} s | |", "|---|---:|", *lines])


if __name__ == "__main__":
    sys.exit(main())
