"""Asking twice: idempotency keys, and the automatic retries of official clients."""

import asyncio
import contextlib
import json

import pytest

from antiphon.testing import Fault, FaultKind
from antiphon.upstream.retry import RetryPolicy
from serving import assert_nothing_hangs, judge, read_stream, serving

pytestmark = pytest.mark.anyio

QUICK = {"retry": RetryPolicy(base_s=0.001, retry_after_cap_s=0.01)}


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'work.db'}"


async def test_one_key_and_one_body_is_one_response(store):
    """The second request with a key gets the first one's response, as JSON and as a stream."""
    async with serving(store=store) as s:
        for body in ({"input": "hi"}, {"input": "hi", "stream": True}, {"input": "hi", "background": True}):
            key = {"Idempotency-Key": json.dumps(body)}
            first = await s.post({"model": "fake", **body}, headers=key)
            response_id = first.headers["x-antiphon-response-id"]
            await s.until_status(response_id, "completed")
            again = await s.post({"model": "fake", **body}, headers=key)
            assert again.status == 200
            assert again.headers["x-antiphon-response-id"] == response_id
            if "background" not in body:
                assert again.raw == first.raw
        assert len(s.upstream.requests) == 3
        other = await s.post(
            {"model": "fake", "input": "other"}, headers={"Idempotency-Key": json.dumps({"input": "hi"})}
        )
        assert other.status == 422
        assert other.error["code"] == "idempotency_key_reused"


async def test_one_key_at_the_same_time_is_one_response(store):
    """Twenty requests with one key, started together, share one response and one model call."""
    async with serving(store=store, pace_s=0.01) as s:
        body = {"model": "fake", "input": "hi"}
        for mode in ({}, {"stream": True}):
            answers = await asyncio.gather(
                *(s.post({**body, **mode}, headers={"Idempotency-Key": f"k{mode}"}) for _ in range(20))
            )
            assert {answer.status for answer in answers} == {200}, [
                a.raw for a in answers if a.status != 200
            ][:2]
            assert len({answer.headers["x-antiphon-response-id"] for answer in answers}) == 1
            assert len({answer.raw for answer in answers}) == 1
        assert len(s.upstream.requests) == 2
        assert len(await assert_nothing_hangs(s)) == 2


async def test_one_key_joins_what_still_runs(store):
    """A second request with the key of a running response waits for the same end."""
    async with serving(store=store) as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        key = {"Idempotency-Key": "k"}
        first = asyncio.ensure_future(s.post({"model": "fake", "input": "hi"}, headers=key))
        await s.upstream.until_hanging()
        second = asyncio.ensure_future(s.post({"model": "fake", "input": "hi"}, headers=key))
        other = await s.post({"model": "fake", "input": "other"}, headers=key)
        assert other.status == 422
        s.upstream.release()
        one, two = await asyncio.gather(first, second)
        assert one.json == two.json
        assert len(s.upstream.requests) == 1


async def test_a_key_keeps_its_failure(store):
    """A keyed request that failed fails again in the same way, without asking the model again."""
    async with serving(store=store, client=QUICK) as s:
        s.upstream.inject(Fault(kind=FaultKind.STATUS, status=400))
        key = {"Idempotency-Key": "k"}
        first = await s.post({"model": "fake", "input": "hi"}, headers=key)
        again = await s.post({"model": "fake", "input": "hi"}, headers=key)
        assert first.status == again.status == 400
        assert first.json == again.json
        assert len(s.upstream.requests) == 1


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_keys_have_a_length(key):
    """A key of no or of too many characters is refused."""
    async with serving() as s:
        answer = await s.post({"model": "fake", "input": "hi"}, headers={"Idempotency-Key": key})
        assert answer.status == 400
        assert answer.error["param"] == "Idempotency-Key"


async def test_a_key_needs_storage():
    """`store: false` remembers nothing, so a key with it is refused rather than ignored."""
    async with serving() as s:
        answer = await s.post(
            {"model": "fake", "input": "hi", "store": False}, headers={"Idempotency-Key": "k"}
        )
        assert answer.status == 400
        assert answer.error["param"] in {"store", "Idempotency-Key"}


RETRIED = {"x-stainless-retry-count": "1"}


@pytest.mark.parametrize("mode", [{}, {"stream": True}], ids=["json", "stream"])
async def test_an_automatic_retry_joins_its_first_attempt(store, mode):
    """After a lost connection the client's own retry gets the response that its first attempt began."""
    async with serving(store=store) as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        body = {"model": "fake", "input": "hi", **mode}
        first = asyncio.ensure_future(s.post(body))
        await s.upstream.until_hanging()
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        retry = asyncio.ensure_future(s.post(body, headers=RETRIED))
        await asyncio.sleep(0)
        s.upstream.release()
        answer = await asyncio.wait_for(retry, 10)
        assert answer.status == 200
        assert len(s.upstream.requests) == 1
        if mode:
            judge(read_stream(answer))
        assert len(await assert_nothing_hangs(s)) == 1


async def test_a_retry_finds_what_ended_unheard(store):
    """A response that ended while its client was gone is given to the retry."""
    async with serving(store=store) as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        first = asyncio.ensure_future(s.post({"model": "fake", "input": "hi"}))
        await s.upstream.until_hanging()
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        async with asyncio.timeout(5):  # the server has seen that the client left
            while any(run.readers for run in s.engine.active.values()):
                await asyncio.sleep(0.005)
        s.upstream.release()
        (ended,) = await assert_nothing_hangs(s)
        answer = await s.post({"model": "fake", "input": "hi"}, headers=RETRIED)
        assert answer.json["id"] == ended.response_id
        assert len(s.upstream.requests) == 1


@pytest.mark.parametrize("mode", [{}, {"stream": True}], ids=["json", "stream"])
async def test_a_retry_never_gets_what_was_delivered(store, mode):
    """An answer that reached its client is not given to another request that merely looks the same."""
    async with serving(store=store) as s:
        body = {"model": "fake", "input": "hi", **mode}
        first = await s.post(body)
        second = await s.post(body, headers=RETRIED)
        assert second.status == 200
        assert first.headers["x-antiphon-response-id"] != second.headers["x-antiphon-response-id"]
        assert len(s.upstream.requests) == 2


async def test_a_first_attempt_is_never_joined(store):
    """Without the retry header the same body is a new response, also while one runs."""
    async with serving(store=store) as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        first = asyncio.ensure_future(s.post({"model": "fake", "input": "hi"}))
        await s.upstream.until_hanging()
        second = await s.post({"model": "fake", "input": "hi"})
        s.upstream.release()
        assert (await first).json["id"] != second.json["id"]


async def test_a_retry_with_another_body_is_a_request_of_its_own(store):
    """Only the same body is the same request."""
    async with serving(store=store) as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        first = asyncio.ensure_future(s.post({"model": "fake", "input": "hi"}))
        await s.upstream.until_hanging()
        other = await s.post({"model": "fake", "input": "ho"}, headers=RETRIED)
        s.upstream.release()
        assert (await first).json["id"] != other.json["id"]
