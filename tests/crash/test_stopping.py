"""SIGTERM: what is safe to run again is handed back at once, a `once` call is waited for."""

import asyncio

import pytest

from antiphon.domain.steps import StepState
from antiphon.testing import loop_script
from antiphon.testing.history import check_history
from antiphon.testing.server_process import ServerProcess
from crash.world import THREE_EFFECTS, World, served_world

pytestmark = [pytest.mark.crash, pytest.mark.anyio]

_GRACE_S = 4.0  # nothing to wait for but a call of about a second; connections are cut, not waited for


async def _stop(world: World) -> None:
    assert isinstance(world.server, ServerProcess)
    assert await asyncio.wait_for(world.server.terminate(), _GRACE_S) == 0
    world.note_death()


async def test_tools_are_handed_back_or_waited_for(tmp_path):
    """Pure and idempotent calls are pending again, the `once` call has its result, nobody owns the run."""
    script = loop_script(model_calls=2, tools=THREE_EFFECTS, per_turn=3)
    async with served_world(tmp_path, script, tool_pace=5) as world:
        tag = world.tag()
        response_id = await world.begin(tag)
        async with world.reader(response_id) as reader:
            reading = asyncio.create_task(reader.read())
            await world.until_calls(3)
            await _stop(world)
            left = world.snapshots[-1].runs[response_id]
            tools = {step.request["name"]: step.state for step in left.steps if step.effect}
            assert tools == {
                "look": StepState.PENDING,
                "put": StepState.PENDING,
                "pay": StepState.COMPLETED,
            }
            assert (left.owner, left.takeovers) == (None, 0)
            await world.server.start()
            await reading
            history = await world.history(response_id, tag, [reader])
            assert check_history(history) == []
            assert history.final.takeovers == 0
            assert sum(call.tool == "pay" for call in world.ledger.calls()) == 1


async def test_a_model_call_is_handed_back(tmp_path):
    """Broken off in mid-answer, pending again; the reader is cut, resumes, and sees the answer anew."""
    script = loop_script(model_calls=2, tools=("look",), per_turn=3)
    async with served_world(tmp_path, script, pace_s=0.05) as world:
        tag = world.tag()
        response_id = await world.begin(tag)
        async with world.reader(response_id) as reader:
            reading = asyncio.create_task(reader.read())
            await reader.until_seen(8)
            await _stop(world)
            left = world.snapshots[-1].runs[response_id]
            assert [step.state for step in left.steps] == [StepState.PENDING]
            assert (left.owner, left.takeovers) == (None, 0)
            await world.server.start()
            await reading
            history = await world.history(response_id, tag, [reader])
            assert check_history(history) == []
            assert history.final.takeovers == 0
            assert len(reader.connections) > 1
