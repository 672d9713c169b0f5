"""Killing at random moments, and counting what was hit.

Fresh responses are started, in the background and streamed in turns, each with a reader that reconnects;
the server is killed and started again until they have all ended. A kill counts by what the journal shows in flight right after it: a kill
that hit nothing proves nothing.
"""

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from antiphon.domain.steps import StepKind
from antiphon.testing import RecordingReader
from antiphon.testing.evidence import ResponseHistory
from antiphon.testing.history import check_history
from antiphon.testing.snapshots import Snapshot
from crash.world import World

_ENDS_WITHIN_S = 300.0

_in_the_background = itertools.cycle((True, False))


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """When it is enough. `longest_s`: a kill comes at most so long after the server listens."""

    kills: int
    model: int
    tool: int
    parallel: int = 1
    longest_s: float = 0.7


class Tally(msgspec.Struct, kw_only=True):
    """What happened; `kills` by what they hit: model, tool, both, nothing."""

    kills: Counter[str] = msgspec.field(default_factory=Counter)
    once_in_flight: int = 0
    responses: int = 0
    counts: Counter[str] = msgspec.field(default_factory=Counter)
    violations: list[str] = msgspec.field(default_factory=list)

    @property
    def hits(self) -> int:
        """Kills that hit a step in flight."""
        return self.kills.total() - self.kills["nothing"]

    def reaches(self, goal: Goal) -> bool:
        """Whether enough has been hit."""
        model, tool = (self.kills[kind] + self.kills["both"] for kind in ("model", "tool"))
        return self.hits >= goal.kills and model >= goal.model and tool >= goal.tool


async def kill_at_random(
    world: World, goal: Goal, *, seed: int, told: Callable[[Tally], None] = lambda _tally: None
) -> Tally:
    """Kill until the goal is reached, or something does not hold; every response is judged."""
    choice = random.Random(seed)
    tally = Tally()
    while not tally.reaches(goal) and not tally.violations:
        async with _responses(world, goal.parallel) as runs:
            while not all(run.reading.done() for run in runs):
                readings = [run.reading for run in runs if not run.reading.done()]
                await asyncio.wait(readings, timeout=choice.uniform(0.02, goal.longest_s))
                if all(run.reading.done() for run in runs) or tally.reaches(goal):
                    break
                _count(tally, await world.kill())
                await world.server.start()
                told(tally)
            for run in runs:
                await run.reading
                _judge(tally, await _evidence(world, run, choice))
        world.snapshots.clear()
        told(tally)
    return tally


class _Run:
    """One response, and whoever reads it from the first event to the last."""

    def __init__(self, tag: str, reader: RecordingReader, *, background: bool) -> None:
        self.tag = tag
        self.reader = reader
        self.reading = asyncio.create_task(self._read(background=background))

    async def _read(self, *, background: bool) -> None:
        await self.reader.create({"model": "fake", "input": self.tag, "background": background})
        await self.reader.read(_ENDS_WITHIN_S)


@contextlib.asynccontextmanager
async def _responses(world: World, count: int) -> AsyncIterator[list[_Run]]:
    async with contextlib.AsyncExitStack() as stack:
        runs = []
        for _ in range(count):
            reader = await stack.enter_async_context(world.reader())
            runs.append(_Run(world.tag(), reader, background=next(_in_the_background)))
            stack.callback(runs[-1].reading.cancel)
            await reader.until_seen(1)
        yield runs


def _count(tally: Tally, snapshot: Snapshot) -> None:
    models = [step for run in snapshot.runs.values() for step in run.processing(StepKind.MODEL_CALL)]
    tools = [step for run in snapshot.runs.values() for step in run.processing(StepKind.TOOL_CALL)]
    hit = "both" if models and tools else "model" if models else "tool" if tools else "nothing"
    tally.kills[hit] += 1
    tally.once_in_flight += sum(step.effect == "once" for step in tools)


async def _evidence(world: World, run: _Run, choice: random.Random) -> ResponseHistory:
    last = run.reader.events[-1]["sequence_number"]
    cursors = sorted({choice.randrange(last) for _ in range(3)})
    return await world.history(str(run.reader.response_id), run.tag, [run.reader], cursors=cursors)


def _judge(tally: Tally, history: ResponseHistory) -> None:
    tally.responses += 1
    tally.violations += check_history(history)
    steps = history.final.steps
    tools = [step for step in steps if step.kind is StepKind.TOOL_CALL]
    starts: Counter[str] = Counter(call.key for call in history.calls if call.phase == "start")
    counts: dict[str, Any] = {
        "steps": len(steps),
        "tool steps": len(tools),
        "tool calls repeated under the same key": sum(max(0, n - 1) for n in starts.values()),
        "once steps": sum(step.effect == "once" for step in tools),
        "once steps in doubt": sum(step.error is not None for step in tools),
        "model answers torn and asked again": len(history.requests) - (len(steps) - len(tools)),
        "events told": len(run_events(history)),
        "events struck": len({n for r in history.records for n in r.log} - set(history.final.log)),
        "reader connections": sum(len(connections) for connections in history.readers),
        "replays": len(history.replays),
    }
    tally.counts.update(counts)


def run_events(history: ResponseHistory) -> list[Any]:
    """All that the readers saw."""
    return [event for connections in history.readers for c in connections for event in c.events]
