"""Death right before, and right after, each single commit of a response: no boundary is a weak one."""

import asyncio

import aiohttp
import pytest

from antiphon.testing import RecordingReader, loop_script
from antiphon.testing.evidence import ResponseHistory
from antiphon.testing.history import check_history
from crash.world import RETRY, THREE_EFFECTS, World, forked_world

pytestmark = [pytest.mark.crash, pytest.mark.anyio]

MOST_COMMITS = 40
LEAST_COMMITS = 5


@pytest.mark.parametrize("mode", ["foreground", "stream", "background"])
@pytest.mark.parametrize("point", ["commit.before", "commit.after"])
async def test_no_commit_is_a_weak_boundary(point, mode, tmp_path):
    """The n-th commit kills, for every n that there is; each response is finished, once, as it was told."""
    script = loop_script(model_calls=2, tools=THREE_EFFECTS, per_turn=3)
    async with forked_world(tmp_path, script, pace_s=0, tool_pace=0.05, start=False) as world:
        for number in range(1, MOST_COMMITS):
            environment, mark = world.arming(f"{point}:{number}")
            await world.server.start(**environment)
            history = await _MODES[mode](world)
            assert check_history(history) == [], number
            if not mark.exists():
                break
            await world.kill()
        assert number > LEAST_COMMITS


async def _revive(world: World) -> None:
    """The process has died, or is about to: a new one takes its place."""
    assert await world.server.ended() == -9
    world.note_death()
    await world.server.start()


async def _foreground(world: World) -> ResponseHistory:
    """Asks again until answered; what it was answered is what is there."""
    tag, headers = world.tag(), None
    while True:
        asking = world.ask("POST", "/v1/responses", {"model": "fake", "input": tag}, headers)
        try:
            status, body = await asking
        except aiohttp.ClientError:
            await _revive(world)
            headers = RETRY
            continue
        assert status == 200
        history = await world.history(body["id"], tag, cursors=())
        assert history.body == body
        return history


async def _stream(world: World) -> ResponseHistory:
    tag = world.tag()
    async with world.reader() as reader:
        await reader.create({"model": "fake", "input": tag})
        if reader.terminal is None:
            await _revive(world)
        if reader.response_id is None:
            await reader.create({"model": "fake", "input": tag}, RETRY)
        return await _evidence(world, tag, reader)


async def _background(world: World) -> ResponseHistory:
    tag = world.tag()
    async with world.reader() as reader:
        try:
            reader.response_id = await world.begin(tag, {"Idempotency-Key": tag})
        except aiohttp.ClientError:
            await _revive(world)
            reader.response_id = await world.begin(tag, {"Idempotency-Key": tag})
        return await _evidence(world, tag, reader)


async def _evidence(world: World, tag: str, reader: RecordingReader) -> ResponseHistory:
    reading = world.reading(reader)
    dying = asyncio.create_task(world.server.ended())
    await asyncio.wait({reading, dying}, return_when=asyncio.FIRST_COMPLETED)
    if dying.done():
        await _revive(world)
    dying.cancel()
    await reading
    return await world.history(reader.response_id, tag, [reader])


_MODES = {"foreground": _foreground, "stream": _stream, "background": _background}
