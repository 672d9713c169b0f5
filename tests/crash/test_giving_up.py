"""When work is not taken up again: because it was said so, or because it kills every server."""

import msgspec
import pytest

from antiphon.testing import loop_script
from antiphon.testing.history import check_history
from crash.world import forked_world

pytestmark = [pytest.mark.crash, pytest.mark.anyio]


async def test_without_recovery_unfinished_work_is_left_alone(tmp_path):
    """`recovery=False` touches nothing; a later process with recovery finishes it."""
    script = loop_script(model_calls=2, tools=("put",), per_turn=1)
    async with forked_world(tmp_path, script, tool_pace=4, durability={"recovery": False}) as world:
        tag, other = world.tag(), world.tag()
        response_id = await world.begin(tag)
        await world.until_calls(1)
        left = (await world.kill()).runs[response_id]
        await world.server.start()
        await world.until_ended(await world.begin(other))
        again = (await world.kill()).runs[response_id]
        assert again == left
        assert len(world.requests_of(tag)) == 1
        world.server.options = msgspec.structs.replace(world.server.options, durability={})
        await world.server.start()
        async with world.reader(response_id) as reader:
            await reader.read()
            assert check_history(await world.history(response_id, tag, [reader])) == []


async def test_work_that_kills_every_server_is_given_up(tmp_path):
    """Taken over as often as allowed without a step's end, it ends `failed`, and the server lives."""
    script = loop_script(model_calls=2, tools=("poison",), per_turn=1)
    async with forked_world(tmp_path, script, durability={"max_takeovers": 2}) as world:
        tag = world.tag()
        response_id = await world.begin(tag)
        for takeovers in range(3):
            assert await world.server.ended() == -9
            assert world.note_death().runs[response_id].takeovers == takeovers
            if takeovers < 2:
                await world.server.start_to_die()
        await world.server.start()
        body = await world.until_ended(response_id)
        assert (body["status"], body["error"]["code"]) == ("failed", "recovery_exhausted")
        assert len(world.ledger.calls()) == 3
        history = await world.history(response_id, tag, status="failed")
        assert check_history(history) == []
        status, _ = await world.ask("GET", "/readyz")
        assert status == 200
