"""The server is killed at random moments; `scripts/torture.py` does the same at length."""

import pytest

from crash.kill_loop import Goal, kill_at_random
from crash.world import forked_world, served_world

pytestmark = [pytest.mark.crash, pytest.mark.anyio]


async def test_no_random_kill_loses_or_doubles_anything(tmp_path):
    """Twenty kills in flight, three responses at a time: every history agrees with itself."""
    async with forked_world(tmp_path, pace_s=0.006, tool_pace=0.7) as world:
        goal = Goal(kills=20, model=5, tool=5, parallel=3, longest_s=0.4)
        tally = await kill_at_random(world, goal, seed=20)
    assert tally.violations == []
    assert tally.responses >= 3


async def test_the_served_program_survives_kills_too(tmp_path):
    """`antiphon serve` itself, as anybody starts it, is killed in flight and goes on."""
    async with served_world(tmp_path, pace_s=0.006, tool_pace=0.7) as world:
        tally = await kill_at_random(world, Goal(kills=3, model=0, tool=0), seed=3)
    assert tally.violations == []
