"""The disk takes no more: new work is refused, work under way waits, and nothing is lost."""

import resource

import pytest

from antiphon.testing import answer_script
from antiphon.testing.history import check_history
from crash.world import World, forked_world

pytestmark = [pytest.mark.crash, pytest.mark.anyio]

_LONG = " ".join(f"word{n}" for n in range(120))


def _let_files_grow(world: World, *, to_bytes: int) -> None:
    """As far as the server is concerned, the disk ends here."""
    _, hard = resource.prlimit(world.server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(world.server.pid, resource.RLIMIT_FSIZE, (to_bytes, hard))


async def test_a_full_disk_refuses_new_work_and_delays_the_old(tmp_path):
    """503 for what is new, keepalives for who reads, and all goes on when there is room again."""
    async with forked_world(tmp_path, answer_script(_LONG), pace_s=0.02, keepalive_s=0.2) as world:
        tag = world.tag()
        response_id = await world.begin(tag)
        async with world.reader(response_id) as reader:
            reading = world.reading(reader)
            await reader.until_seen(20)
            _let_files_grow(world, to_bytes=4096)
            await _refuses_everything_new(world)
            await world.hears_keepalives(response_id, after=reader.events[-1]["sequence_number"])
            assert not reading.done()
            _let_files_grow(world, to_bytes=resource.RLIM_INFINITY)
            await reading
            history = await world.history(response_id, tag, [reader])
            assert check_history(history) == []
            assert len(history.requests) == 1
            status, ready = await world.ask("GET", "/readyz")
            assert (status, ready["status"]) == (200, "ready")


async def _refuses_everything_new(world: World) -> None:
    for kind in ({"background": True}, {"stream": True}, {}):
        body = {"model": "fake", "input": world.tag(), **kind}
        status, answer = await world.ask("POST", "/v1/responses", body)
        assert (status, answer["error"]["code"]) == (503, "store_unavailable"), kind
    status, ready = await world.ask("GET", "/readyz")
    assert (status, ready["status"]) == (503, "not ready")
