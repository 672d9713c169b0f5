"""`OpenAI()` as it comes: a server dies under it, and its own retry gets the answer. Nothing is done twice."""

import asyncio

import aiohttp
import openai
import pytest

from antiphon.testing import loop_script
from antiphon.testing.history import check_history
from antiphon.testing.snapshots import take_snapshot
from crash.world import World, forked_world, served_world

pytestmark = [pytest.mark.crash, pytest.mark.anyio]


async def _ask(world: World, tag: str) -> openai.types.responses.Response:
    """One call, with the client's defaults, in a thread of its own."""

    def call() -> openai.types.responses.Response:
        with openai.OpenAI(base_url=world.server.url + "/v1", api_key="any") as client:
            return client.responses.create(model="fake", input=tag)

    return await asyncio.to_thread(call)


def _one_call_of(tool: str):
    return loop_script(model_calls=2, tools=(tool,), per_turn=1)


@pytest.mark.parametrize("tool", ["look", "put", "pay"])
async def test_its_retry_gets_the_answer_after_a_kill_in_mid_tool(tool, tmp_path):
    """One response, one effect: repeated under one key, or, for `once`, not repeated."""
    async with forked_world(tmp_path, _one_call_of(tool), tool_pace=4) as world:
        tag = world.tag()
        asking = asyncio.create_task(_ask(world, tag))
        await world.until_calls(1)
        await world.kill()
        await world.server.start()
        response = await asking
        assert response.status == "completed"
        assert response.output_text.endswith("All steps are done.")
        assert check_history(await world.history(response.id, tag, cursors=())) == []
        assert len(take_snapshot(world.database).runs) == 1
        raw_calls = {"look": 2, "put": 2, "pay": 1}
        assert [len(calls) for calls in world.ledger.by_key().values()] == [raw_calls[tool]]


async def test_its_retry_gets_the_answer_that_was_lost_on_the_way(tmp_path):
    """Killed with the answer written and not sent: the retry is given that answer, and no model is asked."""
    async with forked_world(tmp_path, _one_call_of("pay"), start=False) as world:
        environment, mark = world.arming("end.after_commit")
        await world.server.start(**environment)
        tag = world.tag()
        asking = asyncio.create_task(_ask(world, tag))
        assert await world.server.ended() == -9
        assert mark.exists()
        (response_id,) = world.note_death().runs
        await world.server.start()
        response = await asking
        assert response.id == response_id
        assert check_history(await world.history(response.id, tag, cursors=())) == []
        assert len(take_snapshot(world.database).runs) == 1
        assert (len(world.upstream.requests), len(world.ledger.calls())) == (2, 1)


async def test_what_nobody_asks_for_again_ends_failed(tmp_path):
    """A plain response whose client never comes back is held for the grace, and starts nothing more."""
    grace = {"ANTIPHON_DURABILITY__GRACE": "0.5"}
    async with served_world(tmp_path, _one_call_of("look"), tool_pace=4, **grace) as world:
        tag = world.tag()
        asking = asyncio.create_task(world.ask("POST", "/v1/responses", {"model": "fake", "input": tag}))
        await world.until_calls(1)
        (response_id,) = (await world.kill()).runs
        with pytest.raises(aiohttp.ClientError):
            await asking
        await world.server.start()
        body = await world.until_ended(response_id)
        assert (body["status"], body["error"]["code"]) == ("failed", "server_restarted")
        assert (len(world.upstream.requests), len(world.ledger.calls())) == (1, 1)
        history = await world.history(response_id, tag, cursors=(), status="failed")
        assert check_history(history) == []
