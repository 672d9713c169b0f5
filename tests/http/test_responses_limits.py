"""Bounds: how much runs and waits at once, and how long one response may go on."""

import asyncio

import pytest

from antiphon import Limits, tool
from antiphon.testing import FaultKind, ScriptedCall, Turn, answer_script
from serving import assert_nothing_hangs, serving, text_of, types

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'work.db'}"


async def test_more_than_may_wait_is_told_when_to_come_back(store):
    """Running and waiting places full: 429 with Retry-After; the queued ones are served in order."""
    async with serving(store=store, limits=Limits(running=1, waiting=2)) as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        running = await s.create({"input": "r", "background": True})
        assert running["status"] == "in_progress"
        await s.upstream.until_hanging()
        first = await s.create({"input": "w1", "background": True})
        second = asyncio.ensure_future(s.stream({"input": "w2"}))
        await until_waiting(s, 3)
        assert first["status"] == "queued"
        for mode in ({}, {"stream": True}, {"background": True}):
            answer = await s.post({"model": "fake", "input": "too much", **mode})
            assert answer.status == 429
            assert answer.error["type"] == "rate_limit_error"
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.headers["x-ratelimit-remaining-requests"] == "0"
            assert answer.headers["x-ratelimit-limit-requests"] == "3"
            assert answer.headers.get("x-should-retry") != "false", "nothing was admitted: a retry is right"
        assert (await s.get(f"/v1/responses/{first['id']}")).json["status"] == "queued"
        assert "antiphon_responses_waiting 2.0" in (await s.get("/metrics")).raw.decode()
        s.upstream.release()
        events = await asyncio.wait_for(second, 10)
        assert types(events)[:3] == ["response.created", "response.queued", "response.in_progress"]
        assert events[1]["response"]["status"] == "queued"
        replayed = await s.replay(first["id"])
        assert types(replayed)[:3] == ["response.created", "response.queued", "response.in_progress"]
        await s.until_status(first["id"], "completed")
        assert "antiphon_responses_waiting 0.0" in (await s.get("/metrics")).raw.decode()
        assert (await s.create({"input": "room again"}))["status"] == "completed"
        await assert_nothing_hangs(s)
    prompts = [request.body["messages"][-1]["content"] for request in s.upstream.requests]
    assert prompts == ["r", "w1", "w2", "room again"]


async def until_waiting(s, count):
    async with asyncio.timeout(5):
        while len(s.engine.active) < count:
            await asyncio.sleep(0.005)


async def test_many_more_than_run_at_once_all_end(store):
    """Sixty foreground requests through four places: all are answered, each with its own words."""
    async with serving(answer_script("Done."), store=store, limits=Limits(running=4, waiting=100)) as s:
        answers = await asyncio.gather(*(s.post({"model": "fake", "input": f"n{n}"}) for n in range(60)))
        assert {answer.status for answer in answers} == {200}
        assert len({text_of(answer.json) for answer in answers}) == 60
        await assert_nothing_hangs(s)


async def test_iteration_and_tool_call_limits_end_incomplete(store):
    """A model that never stops calling is stopped; what it did is kept and the next turn is possible."""

    @tool(effect="pure")
    async def again() -> str:
        """Again."""
        return "again"

    def script(request):
        return (
            Turn(text="Fine.")
            if request.prompt != "loop"
            else Turn(calls=(ScriptedCall("again"), ScriptedCall("again")))
        )

    async with serving(script, store=store, tools=[again], limits=Limits(max_iterations=3)) as s:
        events = await s.stream({"input": "loop"})
        response = events[-1]["response"]
        assert types(events)[-1] == "response.incomplete"
        assert response["incomplete_details"]["reason"] == "max_iterations"
        assert len(response["output"]) == 6
        after = await s.create({"input": "and now?", "previous_response_id": response["id"]})
        assert after["status"] == "completed"
        events = await s.stream({"input": "loop", "max_tool_calls": 3})
        response = events[-1]["response"]
        assert response["incomplete_details"]["reason"] == "max_tool_calls"
        assert sum(item["output"] == "again" for item in response["output"]) == 3
        await s.create({"input": "and now?", "previous_response_id": response["id"]})
