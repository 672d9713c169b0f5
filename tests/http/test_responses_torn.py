"""Answers that break off in the middle: struck, given anew, and every replay a valid stream."""

import contextlib
import json

import aiohttp
import pytest

from antiphon import Limits, tool
from antiphon.testing import Fault, FaultKind, ScriptedCall, Turn, answer_script, fold, turns_script
from antiphon.upstream.retry import RetryPolicy
from serving import judge, judge_response, read_frames, read_stream, serving, text_of, types

pytestmark = pytest.mark.anyio

DONE = b"data: [DONE]\n\n"
QUICK = {"retry": RetryPolicy(base_s=0.001)}


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'work.db'}"


def of_type(events, kind):
    return [event for event in events if event["type"] == kind]


async def cut_and_resumed(s, body):
    """Read a stream that may be cut, resuming with the cursor; the events of each connection."""
    connections = []
    response_id = None
    while True:
        async with contextlib.AsyncExitStack() as stack:
            if response_id is None:
                request = s.session.post("/v1/responses", json={"model": "fake", **body, "stream": True})
            else:
                query = {"stream": "true", "starting_after": str(connections[-1][-1]["sequence_number"])}
                request = s.session.get(f"/v1/responses/{response_id}", params=query)
            answer = await stack.enter_async_context(request)
            raw, broken = b"", False
            try:
                async for chunk in answer.content.iter_any():
                    raw += chunk
            except (aiohttp.ClientPayloadError, ConnectionError):
                broken = True
            assert broken != raw.endswith(DONE)
            connections.append(read_frames(raw.removesuffix(DONE)))
            response_id = response_id or connections[0][0]["response"]["id"]
            if raw.endswith(DONE):
                return connections


@pytest.mark.parametrize("kind", [FaultKind.CUT_MID_STREAM, FaultKind.END_EARLY, FaultKind.ERROR_MID_STREAM])
async def test_a_torn_answer_is_struck_and_given_anew(store, kind):
    """The reader of a torn answer is cut and resumes; each replay is valid, and no torn word is left."""
    async with serving(
        answer_script("one two three four five six"), store=store, pace_s=0.01, client=QUICK
    ) as s:
        s.upstream.inject(Fault(kind=kind, after=6))
        connections = await cut_and_resumed(s, {"input": "hi"})
        assert len(connections) == 2
        seen = [event for events in connections for event in events]
        judge(seen, resumed=True)
        response = seen[-1]["response"]
        assert response["status"] == "completed"
        torn = connections[0][-1]["sequence_number"]
        replayed = await s.replay(response["id"])
        numbers = [event["sequence_number"] for event in replayed]
        assert numbers[:2] == [0, 1]
        assert numbers[2] > torn
        assert replayed[2]["type"] == "response.in_progress"
        assert fold(replayed)["output"] == response["output"]
        for cursor in range(numbers[-1]):
            await s.replay(response["id"], cursor)
        assert len(s.upstream.requests) == 2
        assert text_of(response).count("[attempt") == 1
        assert "[attempt 1 " in text_of(response)
        old_ids = {e["item_id"] for e in connections[0] if "item_id" in e}
        new_ids = {e["item_id"] for e in replayed if "item_id" in e}
        assert old_ids
        assert not old_ids & new_ids
        assert [e["output_index"] for e in of_type(replayed, "response.output_item.added")] == [0]


async def test_resets_stay_in_band_for_clients_that_asked():
    """With `x-antiphon-resets: inline` the torn stream goes on on the same connection."""
    async with serving(answer_script("one two three four"), pace_s=0.01, client=QUICK) as s:
        s.upstream.inject(Fault(kind=FaultKind.CUT_MID_STREAM, after=5))
        answer = await s.post(
            {"model": "fake", "input": "hi", "stream": True}, headers={"x-antiphon-resets": "inline"}
        )
        events = judge(read_stream(answer), resumed=True)
    assert types(events).count("response.in_progress") == 2
    assert types(events)[-1] == "response.completed"
    assert fold(events)["output"] == events[-1]["response"]["output"]


async def test_a_torn_answer_between_tools_keeps_what_was_done(store):
    """When the second turn tears, the first turn's calls stay and are not run again."""
    ran = []

    @tool
    async def book(what: str) -> str:
        """Books."""
        ran.append(what)
        return "booked"

    script = turns_script(
        [Turn(text="First.", calls=(ScriptedCall("book", {"what": "hut"}),)), Turn(text="a b c d e")]
    )
    async with serving(script, store=store, tools=[book], pace_s=0.01, client=QUICK) as s:
        s.upstream.inject(None, Fault(kind=FaultKind.CUT_MID_STREAM, after=4))
        connections = await cut_and_resumed(s, {"input": "hi"})
        response = connections[-1][-1]["response"]
        assert [item["type"] for item in response["output"]] == ["message", "mcp_call", "message"]
        replayed = await s.replay(response["id"])
        reset = of_type(replayed, "response.in_progress")[1]
        assert [item["type"] for item in reset["response"]["output"]] == ["message", "mcp_call"]
        assert [e["output_index"] for e in of_type(replayed, "response.output_item.added")] == [0, 1, 2]
    assert ran == ["hut"]


@pytest.mark.parametrize("stored", [True, False])
async def test_an_answer_that_never_comes_whole_fails(store, stored):
    """After its retries a torn answer ends with one `error` event in both forms, then `response.failed`."""
    limits = Limits(model_attempts=2)
    async with serving(answer_script("one two three four"), store=store, limits=limits, client=QUICK) as s:
        s.upstream.inject(*[Fault(kind=FaultKind.CUT_MID_STREAM, after=4)] * 5)
        connections = await cut_and_resumed(s, {"input": "hi", "store": stored})
        events = [event for each in connections for event in each]
        judge(events, resumed=True)
        error, failed = events[-2:]
        assert error["type"] == "error"
        assert failed["type"] == "response.failed"
        for key in ("code", "message", "param"):
            assert error[key] == error["error"][key]
        assert error["error"]["type"]
        assert failed["response"]["status"] == "failed"
        assert failed["response"]["error"] == {"code": error["code"], "message": error["message"]}
        assert "scripted" not in json.dumps(events)
        assert len(s.upstream.requests) == (2 if stored else 1)
        if stored:
            assert (
                judge_response((await s.get(f"/v1/responses/{failed['response']['id']}")).json)
                == failed["response"]
            )


async def test_a_model_that_refuses_is_told_in_the_stream(store):
    """An upstream that never begins to answer: created, in progress, error, failed."""
    async with serving(store=store, client=QUICK) as s:
        s.upstream.inject(*[Fault(kind=FaultKind.STATUS, status=500)] * 9)
        events = await s.stream({"input": "hi"})
    assert types(events) == ["response.created", "response.in_progress", "error", "response.failed"]
