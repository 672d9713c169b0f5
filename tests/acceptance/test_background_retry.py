"""A background request whose answer was lost: its client's own retry must not start the work twice."""

import pytest

from antiphon import Engine
from antiphon.domain.requests import Arrival
from antiphon.testing import FakeUpstream

pytestmark = pytest.mark.anyio

BODY = {"model": "fake", "input": "hi", "background": True}
FIRST = Arrival(body_digest="d" * 64)
RETRY = Arrival(body_digest="d" * 64, retry_count=1)


async def submit(engine: Engine, arrival: Arrival) -> str:
    """The id of the response that this request gets."""
    handle = await engine.submit(engine.read(BODY), arrival)
    await handle.admitted()
    return handle.response_id


async def test_a_retry_joins_the_response_whose_answer_was_lost(tmp_path):
    """In the same process, while it runs or after its end, and in the next process."""
    url = f"sqlite:///{tmp_path}/work.db"
    async with FakeUpstream() as upstream:
        async with Engine(store=url, upstream=upstream.url + "/v1") as engine:
            first = await submit(engine, FIRST)
            assert await submit(engine, RETRY) == first
            async for _ in (await engine.handle(first, FIRST)).frames():
                pass
            assert await submit(engine, RETRY) == first
        async with Engine(store=url, upstream=upstream.url + "/v1") as engine:
            assert await submit(engine, RETRY) == first
        assert len(upstream.requests) == 1


async def test_a_retry_never_joins_one_whose_answer_arrived(tmp_path):
    """The same body again is new work once the first answer has reached its client."""
    async with (
        FakeUpstream() as upstream,
        Engine(store=f"sqlite:///{tmp_path}/work.db", upstream=upstream.url + "/v1") as engine,
    ):
        first = await submit(engine, FIRST)
        engine.delivered(first)
        assert await submit(engine, RETRY) != first


async def test_only_moments_after_its_admission(tmp_path):
    """Long after, an equal body is a coincidence and not a lost answer."""
    now = 1_000_000.0
    async with (
        FakeUpstream() as upstream,
        Engine(
            store=f"sqlite:///{tmp_path}/work.db", upstream=upstream.url + "/v1", clock=lambda: now
        ) as engine,
    ):
        first = await submit(engine, FIRST)
        now += engine.durability.grace_s + 1
        assert await submit(engine, RETRY) != first
