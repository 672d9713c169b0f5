"""What hangs below `/v1/responses`: reading, following, deleting, cancelling, listing."""

import asyncio

import pytest

from antiphon import Limits, tool
from antiphon.testing import FaultKind, ScriptedCall, Turn, answer_script, loop_script, turns_script
from serving import judge, judge_response, read_frames, read_stream, serving, text_of, types

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'work.db'}"


@tool(effect="pure")
async def effect(run: str, turn: int, index: int) -> str:
    """Does something."""
    return f"{run} {turn} {index}"


# --- reading -----------------------------------------------------------------------------------------


async def test_every_cursor_gives_exactly_the_rest(store):
    """A stream taken up after any event, the last one included, is the rest of the first, byte for byte."""
    script = turns_script(
        [Turn(text="Wait.", reasoning="Hm.", calls=(ScriptedCall("effect", {"run": "r", "turn": 0, "index": 0}),)),
         Turn(text="Done now.")]
    )  # fmt: skip
    async with serving(script, store=store, tools=[effect]) as s:
        first = await s.post({"model": "fake", "input": "hi", "stream": True})
        events = judge(read_stream(first))
        response_id = events[0]["response"]["id"]
        whole = await s.get(f"/v1/responses/{response_id}?stream=true")
        assert whole.raw == first.raw
        for cursor in range(-1, len(events)):
            rest = await s.get(f"/v1/responses/{response_id}?stream=true&starting_after={cursor}", timeout=5)
            expected = b"".join(frame + b"\n\n" for frame in first.raw.split(b"\n\n")[cursor + 1 : -2])
            assert rest.raw == expected + b"data: [DONE]\n\n", cursor
            if cursor + 1 < len(events):
                judge(read_stream(rest), starting_after=cursor)


async def test_a_cursor_beyond_the_end_ends_at_once(store):
    """Nothing can follow a response that has ended, whatever the cursor says."""
    async with serving(store=store) as s:
        for body in ({"input": "hi", "stream": True}, {"input": "hi"}):
            answer = await s.post({"model": "fake", **body})
            response_id = answer.headers["x-antiphon-response-id"]
            path = f"/v1/responses/{response_id}?stream=true&starting_after=100000"
            assert (await s.get(path, timeout=5)).raw == b"data: [DONE]\n\n"


async def test_following_a_running_response_goes_from_the_log_to_live():
    """A second reader that comes in mid-answer reads the same bytes as the first."""
    async with serving(answer_script("word " * 60), pace_s=0.005) as s:
        begun = await s.create({"input": "hi", "background": True})
        readers = [
            s.get(f"/v1/responses/{begun['id']}?stream=true&starting_after={after}") for after in (-1, 0, 5)
        ]
        early = await asyncio.gather(*readers)
        late = await s.get(f"/v1/responses/{begun['id']}?stream=true")
    assert early[0].raw == late.raw
    judge(read_stream(late))
    for after, answer in ((0, early[1]), (5, early[2])):
        events = judge(read_stream(answer), starting_after=after)
        assert events[0]["sequence_number"] == after + 1


@pytest.mark.parametrize(
    "query",
    ["stream=maybe", "starting_after=3", "stream=true&starting_after=x", "stream=true&starting_after=1.5",
     "stream=true&starting_after=-2", "stream=true&starting_after=99999999999999999999999"],
)  # fmt: skip
async def test_bad_parameters_of_get_are_named(store, query):
    """A parameter that makes no sense is a 400 that says which."""
    async with serving(store=store) as s:
        made = await s.create({"input": "hi"})
        answer = await s.get(f"/v1/responses/{made['id']}?{query}", timeout=5)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["param"] in {"stream", "starting_after"}


@pytest.mark.parametrize(
    "response_id", ["resp_none", "%00", "%ff", "resp_" + "a" * 4000, "a%20b", "%F0%9F%A6%8A"]
)
async def test_unknown_responses_are_404_on_every_route(store, response_id):
    """An id that nobody has, however odd, is not found; the answer is JSON."""
    async with serving(store=store) as s:
        one = f"/v1/responses/{response_id}"
        for method, path in (
            ("GET", one), ("GET", one + "?stream=true"), ("DELETE", one), ("POST", one + "/cancel"),
            ("GET", one + "/input_items"), ("GET", one + "/steps"),
        ):  # fmt: skip
            answer = await s.ask(method, path)
            assert answer.status == 404, (method, path)
            assert answer.error["type"] == "not_found_error"


# --- deleting ----------------------------------------------------------------------------------------


async def test_a_deleted_response_is_gone(store):
    """DELETE answers what the wire says; after it every route answers 404, and again 404 to DELETE."""
    async with serving(store=store) as s:
        made = await s.create({"input": "hi"})
        kept = await s.create({"input": "and?", "previous_response_id": made["id"]})
        answer = await s.ask("DELETE", f"/v1/responses/{made['id']}")
        assert answer.status == 200
        assert answer.json == {"id": made["id"], "object": "response", "deleted": True}
        for path in ("", "?stream=true", "/input_items", "/steps"):
            assert (await s.get(f"/v1/responses/{made['id']}{path}")).status == 404
        assert (await s.ask("DELETE", f"/v1/responses/{made['id']}")).status == 404
        assert [r["id"] for r in (await s.get("/v1/responses")).json["data"]] == [kept["id"]]
        refused = await s.post({"model": "fake", "input": "x", "previous_response_id": made["id"]})
        assert refused.status == 400
        third = await s.create({"input": "more", "previous_response_id": kept["id"]})
        assert third["status"] == "completed"
    assert [m["content"] for m in s.upstream.requests[-1].body["messages"] if m["role"] == "user"] == [
        "hi", "and?", "more",
    ]  # fmt: skip


async def test_deleting_what_runs_cancels_it_first(store):
    """The upstream call of a deleted response is broken off, and its reader is told the end."""
    async with serving(store=store) as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        begun = await s.create({"input": "hi", "background": True})
        await s.upstream.until_hanging()
        async with s.session.get(f"/v1/responses/{begun['id']}?stream=true") as watching:
            raw = await watching.content.readuntil(b"\n\n")
            assert (await s.ask("DELETE", f"/v1/responses/{begun['id']}")).status == 200
            raw += await watching.read()
        assert (await s.get(f"/v1/responses/{begun['id']}")).status == 404
        events = judge(read_frames(raw.removesuffix(b"data: [DONE]\n\n")))
        assert events[-1]["response"]["status"] == "cancelled"
        async with asyncio.timeout(5):
            while s.upstream.hanging:
                await asyncio.sleep(0.01)


# --- cancelling --------------------------------------------------------------------------------------


async def test_cancelling_what_runs_ends_it_and_its_readers(store):
    """Cancel gives the response as `cancelled`, its stream ends with `response.failed`, the model is left."""
    async with serving(answer_script("word " * 50), store=store) as s:
        s.upstream.inject(FaultKind.HANG_MID_STREAM)
        begun = await s.create({"input": "hi", "background": True})
        await s.upstream.until_hanging()
        watching = asyncio.ensure_future(s.get(f"/v1/responses/{begun['id']}?stream=true"))
        answer = await s.post(None, f"/v1/responses/{begun['id']}/cancel")
        assert answer.status == 200
        assert judge_response(answer.json)["status"] == "cancelled"
        again = await s.post(None, f"/v1/responses/{begun['id']}/cancel")
        assert again.json == answer.json
        assert (await s.get(f"/v1/responses/{begun['id']}")).json == answer.json
        events = judge(read_stream(await watching), resumed=True)
        assert types(events)[-1] == "response.failed"
        assert events[-1]["response"] == answer.json
        replayed = await s.replay(begun["id"])
        assert replayed[-1] == events[-1]
        async with asyncio.timeout(5):
            while s.upstream.hanging:
                await asyncio.sleep(0.01)


async def test_cancelling_what_has_ended_changes_nothing(store):
    """A completed response stays completed."""
    async with serving(store=store) as s:
        made = await s.create({"input": "hi"})
        answer = await s.post(None, f"/v1/responses/{made['id']}/cancel")
        assert answer.status == 200
        assert answer.json == made


async def test_cancelling_what_waits_in_the_queue(store):
    """A queued response is cancelled without ever having asked the model."""
    async with serving(store=store, limits=Limits(running=1, waiting=2)) as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        running = await s.create({"input": "a", "background": True})
        await s.upstream.until_hanging()
        waiting = await s.create({"input": "b", "background": True})
        assert waiting["status"] == "queued"
        cancelled = (await s.post(None, f"/v1/responses/{waiting['id']}/cancel")).json
        assert judge_response(cancelled)["status"] == "cancelled"
        events = await s.replay(waiting["id"])
        assert types(events) == ["response.created", "response.queued", "response.failed"]
        s.upstream.release()
        await s.until_status(running["id"], "completed")
        later = await s.create({"input": "c"})
        assert later["status"] == "completed"
    assert [r.body["messages"][-1]["content"] for r in s.upstream.requests] == ["a", "c"]


async def test_many_cancels_at_once_agree(store):
    """Twenty cancels in parallel all give the one ending."""
    async with serving(store=store) as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        begun = await s.create({"input": "hi", "background": True})
        await s.upstream.until_hanging()
        answers = await asyncio.gather(
            *(s.post(None, f"/v1/responses/{begun['id']}/cancel") for _ in range(20))
        )
        assert {answer.status for answer in answers} == {200}
        assert {answer.json["status"] for answer in answers} == {"cancelled"}
        events = await s.replay(begun["id"])
        assert types(events).count("response.failed") == 1


async def test_a_foreground_client_hears_of_its_cancellation(store):
    """The waiting POST of a response that somebody cancels is answered with the cancelled response."""
    async with serving(store=store) as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        posting = asyncio.ensure_future(
            s.post({"model": "fake", "input": "hi"}, headers={"Idempotency-Key": "k"})
        )
        await s.upstream.until_hanging()
        (listed,) = (await s.get("/v1/responses")).json["data"]
        await s.post(None, f"/v1/responses/{listed['id']}/cancel")
        answer = await asyncio.wait_for(posting, 5)
        assert answer.status == 200
        assert judge_response(answer.json)["status"] == "cancelled"


@pytest.mark.parametrize("effect_of_tool", ["pure", "idempotent", "once"])
async def test_cancelling_tells_what_became_of_each_tool(store, effect_of_tool):
    """What ended stays; what was sent and may have acted is in doubt, never "not run"; a turn may follow."""
    started = asyncio.Event()

    @tool(effect=effect_of_tool)
    async def slow(n: int) -> str:
        """Slow."""
        if n:
            started.set()
            await asyncio.sleep(30)
        return "quick"

    def script(request):
        if request.prompt != "hi":
            return Turn(text="I see.")
        return Turn(calls=(ScriptedCall("slow", {"n": 0}), ScriptedCall("slow", {"n": 1})))

    async with serving(script, store=store, tools=[slow]) as s:
        begun = await s.create({"input": "hi", "background": True})
        await asyncio.wait_for(started.wait(), 5)
        async with asyncio.timeout(5):
            while "completed" not in [
                row["state"]
                for row in (await s.get(f"/v1/responses/{begun['id']}/steps")).json["data"]
                if row["kind"] == "tool_call"
            ]:
                await asyncio.sleep(0.005)
        cancelled = (await s.post(None, f"/v1/responses/{begun['id']}/cancel")).json
        judge_response(cancelled)
        judge(await s.replay(begun["id"]))
        quick, broken_off = cancelled["output"]
        assert (quick["status"], quick["output"]) == ("completed", "quick")
        if effect_of_tool == "pure":
            assert broken_off["status"] == "incomplete"
            assert broken_off["output"].startswith("not run")
        else:
            assert broken_off["status"] == "failed"
            assert "in doubt" in broken_off["error"]["content"][0]["text"]
        after = await s.create({"input": "what happened?", "previous_response_id": begun["id"]})
        assert after["status"] == "completed"
    told = [m["content"] for m in s.upstream.requests[-1].body["messages"] if m["role"] == "tool"]
    assert told[0] == "quick"
    assert told[1].startswith("not run" if effect_of_tool == "pure" else "in doubt")


# --- input items -------------------------------------------------------------------------------------


def said(items):
    return [item["content"][0]["text"] for item in items]


async def test_input_items_are_paged_in_both_orders(store):
    """Default: newest first, twenty. `after` and `limit` walk over all of them in either order."""
    texts = [f"t{n}" for n in range(45)]
    async with serving(store=store) as s:
        made = await s.create({"input": [{"role": "user", "content": text} for text in texts]})
        path = f"/v1/responses/{made['id']}/input_items"
        first = (await s.get(path)).json
        assert first["object"] == "list"
        assert said(first["data"]) == texts[:-21:-1]
        assert first["has_more"] is True
        assert first["first_id"] == first["data"][0]["id"]
        assert first["last_id"] == first["data"][-1]["id"]
        for order, expected in (("desc", texts[::-1]), ("asc", texts)):
            seen, after = [], None
            while True:
                query = {"order": order, "limit": "7"} | ({} if after is None else {"after": after})
                page = (await s.get(path, params=query)).json
                seen += said(page["data"])
                after = page["last_id"]
                if not page["has_more"]:
                    break
            assert seen == expected
        assert (await s.get(path, params={"limit": "100"})).json["has_more"] is False
        assert len((await s.get(path, params={"limit": "1"})).json["data"]) == 1
        for item in first["data"]:
            assert item["type"] == "message"
            assert item["role"] == "user"
            assert item["status"] == "completed"


async def test_input_items_are_only_this_turns(store):
    """What came before through `previous_response_id` is not this response's input."""
    async with serving(store=store) as s:
        one = await s.create({"input": "one"})
        two = await s.create({"input": "two", "previous_response_id": one["id"]})
        page = (await s.get(f"/v1/responses/{two['id']}/input_items")).json
        assert said(page["data"]) == ["two"]
        empty = await s.create({"previous_response_id": two["id"]})
        page = (await s.get(f"/v1/responses/{empty['id']}/input_items")).json
        assert page == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"), ("limit=-1", "limit"),
     ("order=up", "order"), ("limit=99999999999999999999999999", "limit")],
)  # fmt: skip
async def test_bad_paging_is_named(store, query, param):
    """Limits are 1 to 100, orders are asc and desc, on both lists."""
    async with serving(store=store) as s:
        made = await s.create({"input": "hi"})
        for path in (f"/v1/responses/{made['id']}/input_items", "/v1/responses"):
            answer = await s.get(f"{path}?{query}")
            assert answer.status == 400
            assert answer.error["param"] == param


# --- listing -----------------------------------------------------------------------------------------


async def test_responses_are_listed_newest_first_and_paged(store):
    """The list walks over all responses in both orders, without output."""
    async with serving(store=store) as s:
        ids = [(await s.create({"input": f"n{n}"}))["id"] for n in range(5)]
        page = (await s.get("/v1/responses")).json
        assert [r["id"] for r in page["data"]] == ids[::-1]
        assert page["has_more"] is False
        assert all(r["output"] == [] for r in page["data"])
        for order, expected in (("desc", ids[::-1]), ("asc", ids)):
            seen, after = [], None
            while True:
                query = {"order": order, "limit": "2"} | ({} if after is None else {"after": after})
                page = (await s.get("/v1/responses", params=query)).json
                seen += [r["id"] for r in page["data"]]
                after = page["last_id"]
                if not page["has_more"]:
                    break
            assert seen == expected


async def test_responses_are_found_by_prefix_and_status(store):
    """A beginning of the id, with or without `resp_`, finds it; a status narrows the list."""
    async with serving(store=store) as s:
        made = await s.create({"input": "done"})
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        running = await s.create({"input": "running", "background": True})
        await s.upstream.until_hanging()

        async def listed(**query):
            return [r["id"] for r in (await s.get("/v1/responses", params=query)).json["data"]]

        bare = made["id"].removeprefix("resp_")
        assert await listed(prefix=made["id"]) == [made["id"]]
        assert await listed(prefix=bare) == [made["id"]]
        assert set(await listed(prefix=bare[:2])) >= {made["id"]}
        assert await listed(prefix="zzz") == []
        assert await listed(prefix="%") == []
        assert await listed(status="completed") == [made["id"]]
        assert await listed(status="in_progress") == [running["id"]]
        assert await listed(status="in_progress", prefix=bare) == []
        s.upstream.release()
        await s.until_status(running["id"], "completed")


async def test_an_unknown_status_is_named():
    """A status that no response can have is a mistake of the caller, not an empty list."""
    async with serving() as s:
        answer = await s.get("/v1/responses?status=done")
        assert answer.status == 400
        assert answer.error["param"] == "status"


# --- steps -------------------------------------------------------------------------------------------


async def test_steps_show_the_tree_of_work(store):
    """Every model and tool call of a run is listed by sequence, with its kind, state and preview."""
    async with serving(loop_script(3, per_turn=2), store=store, tools=[effect]) as s:
        made = await s.create({"input": "go"})
        steps = (await s.get(f"/v1/responses/{made['id']}/steps")).json
        assert steps["object"] == "list"
        rows = steps["data"]
        assert [row["kind"] for row in rows] == [
            "model_call",
            *["tool_call"] * 2,
            "model_call",
            *["tool_call"] * 2,
            "model_call",
        ]
        assert {row["state"] for row in rows} == {"completed"}
        sequences = [row["sequence"] for row in rows]
        assert sequences == sorted(set(sequences))
        assert rows[1]["name"] == "effect"
        assert rows[1]["effect"] == "pure"
        assert rows[1]["output_preview"] == "go 0 0"
        assert text_of(made).endswith(rows[-1]["output_preview"][-10:])
