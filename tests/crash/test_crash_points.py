"""At each named moment the process dies on the spot; the next one goes on, and the evidence agrees.

`recovery.*` kills the process that takes over, `cancel.*` and `delete.*` the one that is told to.
"""

import asyncio

import aiohttp
import pytest

from antiphon.domain.crash_points import CRASH_POINTS
from antiphon.testing import RecordingReader
from antiphon.testing.history import check_history
from antiphon.testing.snapshots import Snapshot, take_snapshot
from crash.world import RETRY, World, forked_world

pytestmark = [pytest.mark.crash, pytest.mark.anyio]

MODES = ("stream", "background")

# Which time the point is reached, so that death comes in the middle of the work.
WHILE_WORKING = {
    "admission.before_commit": 1,
    "admission.after_commit": 1,
    "commit.before": 5,
    "commit.after": 5,
    "publish.before": 5,
    "publish.after": 5,
    "model.before_request": 2,
    "model.first_event": 25,
    "model.answered": 2,
    "tool.before_call": 2,
    "tool.after_call": 2,
    "tool.between_siblings": 2,
    "end.before_commit": 1,
    "end.after_commit": 1,
}
WHILE_RECOVERING = ("recovery.after_claim", "recovery.mended")
WHEN_TOLD_TO = ("cancel.after_claim", "delete.before")


def test_every_point_has_its_place_here():
    """A crash point that nobody dies at proves nothing."""
    assert {*WHILE_WORKING, *WHILE_RECOVERING, *WHEN_TOLD_TO} == set(CRASH_POINTS)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("point", WHILE_WORKING)
async def test_work_survives_death(point, mode, tmp_path):
    """The response is finished by the next process, once, and its reader never notices more than a cut."""
    async with forked_world(tmp_path, start=False) as world:
        client = _Client(world, mode)
        async with client.reader:
            left = await client.begin_and_die(f"{point}:{WHILE_WORKING[point]}")
            assert len(left.runs) == (0 if point == "admission.before_commit" else 1)
            await world.server.start()
            await client.go_on()
            await client.check_completed()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("point", WHILE_RECOVERING)
async def test_recovery_survives_death(point, mode, tmp_path):
    """A process that dies while it takes over leaves nothing worse than it found."""
    async with forked_world(tmp_path, start=False) as world:
        client = _Client(world, mode)
        async with client.reader:
            await client.begin_and_die("tool.after_call:2")
            await client.die(world, point)
            await client.die(world, point)
            await world.server.start()
            await client.go_on()
            await client.check_completed()


@pytest.mark.parametrize("mode", MODES)
async def test_a_cancellation_survives_death(mode, tmp_path):
    """Seized for its cancellation and not yet cancelled: the next process cancels it, and runs nothing."""
    async with forked_world(tmp_path, start=False, tool_pace=20) as world:
        environment, mark = world.arming("cancel.after_claim")
        await world.server.start(**environment)
        client = _Client(world, mode)
        async with client.reader:
            beginning = asyncio.create_task(client.beginning())
            await world.until_calls(3)
            with pytest.raises(aiohttp.ClientError):
                await world.ask("POST", f"/v1/responses/{client.reader.response_id}/cancel")
            await client.has_died_at(mark)
            await beginning
            calls = len(world.ledger.calls())
            await world.server.start()
            await client.go_on()
            assert client.reader.terminal["response"]["status"] == "cancelled"
            history = await world.history(
                client.reader.response_id, client.tag, [client.reader], status="cancelled"
            )
            assert check_history(history) == []
            assert (len(history.requests), len(world.ledger.calls())) == (1, calls)


@pytest.mark.parametrize("mode", MODES)
async def test_a_deletion_survives_death(mode, tmp_path):
    """Killed before the deletion: the response is still there, whole, and can be deleted."""
    async with forked_world(tmp_path, start=False) as world:
        environment, mark = world.arming("delete.before")
        await world.server.start(**environment)
        client = _Client(world, mode)
        async with client.reader:
            await client.beginning()
            await client.go_on()
            path = f"/v1/responses/{client.reader.response_id}"
            with pytest.raises(aiohttp.ClientError):
                await world.ask("DELETE", path)
            await client.has_died_at(mark)
            await world.server.start()
            await client.check_completed()
            assert await world.ask("DELETE", path) == (
                200,
                {"id": client.reader.response_id, "object": "response", "deleted": True},
            )
            status, _ = await world.ask("GET", path)
            assert status == 404


class _Client:
    """Somebody who wants one response, and asks again when nothing was heard."""

    def __init__(self, world: World, mode: str) -> None:
        self.world = world
        self.mode = mode
        self.tag = world.tag()
        self.reader: RecordingReader = world.reader()

    async def beginning(self, *, again: bool = False) -> None:
        """Send the request, and read until the end or until the connection breaks."""
        if self.mode == "stream":
            await self.reader.create({"model": "fake", "input": self.tag}, RETRY if again else None)
        else:
            self.reader.response_id = await self.world.begin(self.tag, {"Idempotency-Key": self.tag})

    async def begin_and_die(self, point: str) -> Snapshot:
        """Send the request to a process that dies at a point; the journal that it left."""
        environment, mark = self.world.arming(point)
        await self.world.server.start(**environment)
        try:
            await self.beginning()
        except aiohttp.ClientError:
            assert self.reader.response_id is None
        return await self.has_died_at(mark)

    async def die(self, world: World, point: str) -> None:
        """Start a process that takes over, and dies at a point of doing so."""
        environment, mark = world.arming(point)
        assert await world.server.start_to_die(**environment) == -9
        await self.has_died_at(mark)

    async def has_died_at(self, mark) -> Snapshot:
        """The proof that the process died where it should."""
        assert await self.world.server.ended() == -9
        assert mark.read_text() in CRASH_POINTS
        return self.world.note_death()

    async def go_on(self) -> None:
        """Read to the end; ask again first when the id was never heard."""
        if self.reader.response_id is None:
            await self.beginning(again=True)
        await self.reader.read()

    async def check_completed(self) -> None:
        """One response came of it, and all evidence agrees."""
        history = await self.world.history(self.reader.response_id, self.tag, [self.reader])
        assert check_history(history) == []
        assert len(take_snapshot(self.world.database).runs) == 1
        assert history.replay[-1] == self.reader.terminal
