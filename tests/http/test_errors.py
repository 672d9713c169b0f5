"""What goes wrong is told clearly, with the right status, and leaves nothing behind."""

import asyncio
import gzip
import json
import zlib

import pytest

from antiphon import ModelRoute, ServerOptions, tool
from antiphon.testing import FaultKind, ScriptedCall, Turn, turns_script
from serving import assert_nothing_hangs, serving

pytestmark = pytest.mark.anyio

LOOK_UP = {"type": "function", "name": "look_up", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'work.db'}"


# --- requests that cannot be ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b'"text"', b"null", b"42", b'{"model": "fake", "input": "hi"} x', b"\xff\xfe{}", b'{"a":\x00}',
     b'{"model":"fake","input":"\xff"}', b'{"model":"fake","input":"\\ud800"}', b"[" * 100_000, b'{"a":' * 50_000,
     b'{"model":"fake","input":NaN}'],
)  # fmt: skip
async def test_what_is_not_a_json_object_is_refused(raw):
    """Malformed bodies are a 400 in the wire's form, however malformed."""
    async with serving() as s:
        answer = await s.ask("POST", "/v1/responses", data=raw)
        assert answer.status == 400
        assert answer.error["type"] == "invalid_request_error"
        assert await assert_nothing_hangs(s) == ()
    assert s.upstream.requests == []


@pytest.mark.parametrize("levels", [100, 400, 700, 950])
@pytest.mark.parametrize("place", ["metadata", "unknown", "schema"])
async def test_deep_nesting_is_an_answer_not_a_crash(levels, place):
    """Nesting of any depth is taken or refused, never a 500."""
    deep = "1"
    for _ in range(levels):
        deep = f'{{"a":{deep}}}'
    where = {
        "metadata": f'"metadata":{deep}',
        "unknown": f'"something":{deep}',
        "schema": f'"tools":[{{"type":"function","name":"f","parameters":{deep}}}]',
    }[place]
    async with serving() as s:
        answer = await s.ask("POST", "/v1/responses", data=f'{{"model":"fake","input":"x",{where}}}'.encode())
        assert answer.status in {200, 400}, answer.raw[:300]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "hi"}, "model"),
        ({"model": 5, "input": "hi"}, "model"),
        ({"model": "", "input": "hi"}, "model"),
        ({"model": "fake", "input": 5}, "input"),
        ({"model": "fake", "input": ["hi"]}, "input[0]"),
        ({"model": "fake", "input": [{}]}, "input[0].type"),
        ({"model": "fake", "input": [{"type": 5}]}, "input[0].type"),
        ({"model": "fake", "input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
        ({"model": "fake", "input": [{"role": ["user"], "content": "x"}]}, "input[0].role"),
        ({"model": "fake", "input": [{"role": "user"}]}, "input[0].content"),
        ({"model": "fake", "input": [{"role": "user", "content": {"a": 1}}]}, "input[0].content"),
        ({"model": "fake", "input": [{"role": "user", "content": ["x"]}]}, "input[0].content[0]"),
        ({"model": "fake", "input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"model": "fake", "input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]}, "input[0].content[0].text"),
        ({"model": "fake", "input": [{"role": "user", "content": "x", "id": 7}]}, "input[0].id"),
        ({"model": "fake", "input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
        ({"model": "fake", "input": [{"type": "function_call", "call_id": 1, "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"model": "fake", "input": [{"type": "function_call_output", "call_id": "c", "output": 5}]}, "input[0].output"),
        ({"model": "fake", "input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"model": "fake", "input": "hi", "stream": "yes"}, "stream"),
        ({"model": "fake", "input": "hi", "temperature": "hot"}, "temperature"),
        ({"model": "fake", "input": "hi", "temperature": 3}, "temperature"),
        ({"model": "fake", "input": "hi", "top_p": -1}, "top_p"),
        ({"model": "fake", "input": "hi", "max_output_tokens": 15}, "max_output_tokens"),
        ({"model": "fake", "input": "hi", "max_output_tokens": 10**30}, "max_output_tokens"),
        ({"model": "fake", "input": "hi", "metadata": {"a": 1}}, "metadata"),
        ({"model": "fake", "input": "hi", "metadata": {"a": "x" * 513}}, "metadata"),
        ({"model": "fake", "input": "hi", "metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"model": "fake", "input": "hi", "tools": {}}, "tools"),
        ({"model": "fake", "input": "hi", "tools": [{}]}, "tools[0].type"),
        ({"model": "fake", "input": "hi", "tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"model": "fake", "input": "hi", "tools": [{"type": "function", "name": "a" * 65}]}, "tools[0].name"),
        ({"model": "fake", "input": "hi", "tools": [{"type": "function", "name": "a\n"}]}, "tools[0].name"),
        ({"model": "fake", "input": "hi", "tools": [LOOK_UP, LOOK_UP]}, "tools[1].name"),
        ({"model": "fake", "input": "hi", "tools": [{"type": "function", "name": "f", "parameters": "x"}]}, "tools[0].parameters"),
        ({"model": "fake", "input": "hi", "tool_choice": "sometimes"}, "tool_choice"),
        ({"model": "fake", "input": "hi", "tool_choice": "required"}, "tool_choice"),
        ({"model": "fake", "input": "hi", "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"model": "fake", "input": "hi", "tool_choice": {"type": "function", "name": "nope"}}, "tool_choice"),
        ({"model": "fake", "input": "hi", "text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"model": "fake", "input": "hi", "text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"model": "fake", "input": "hi", "text": {"format": "json"}}, "text.format"),
        ({"model": "fake", "input": "hi", "truncation": "maybe"}, "truncation"),
        ({"model": "fake", "input": "hi", "background": True, "store": False}, "background"),
        ({"model": "fake", "input": "hi", "conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"),
        ({"model": "fake", "input": "hi", "previous_response_id": 5}, "previous_response_id"),
        ({"model": "fake", "input": "hi", "include": "x"}, "include"),
        ({"model": "fake", "input": "hi", "reasoning": "hard"}, "reasoning"),
        ({"model": "fake", "input": "a\x00b"}, "input"),
        ({"model": "fake", "input": [{"role": "user", "content": [{"type": "input_text", "text": "\x00"}]}]}, "input[0].content[0].text"),
        ({"model": "fake", "input": "hi", "instructions": "\x00"}, "instructions"),
        ({"model": "fake", "input": "hi", "metadata": {"k": "\x00"}}, "metadata.k"),
        ({"model": "fake", "input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input"),
        ({"model": "fake", "input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
async def test_wrong_parameters_are_named_by_their_path(body, param):
    """A 400 whose `param` is the place in the body; streams and background are refused the same way."""
    async with serving() as s:
        for mode in ({}, {"stream": True}, {"background": True, "store": True}):
            if set(mode) & set(body):
                continue
            answer = await s.post({**body, **mode})
            assert answer.status == 400, answer.raw[:300]
            assert answer.error["type"] == "invalid_request_error"
            assert answer.error["param"].startswith(param), answer.error
        assert await assert_nothing_hangs(s) == ()
    assert s.upstream.requests == []


async def test_limits_that_just_hold():
    """What stands right at a limit is taken."""
    body = {
        "input": "hi",
        "max_output_tokens": 16,
        "metadata": {str(n): "x" * 512 for n in range(16)},
        "tools": [{**LOOK_UP, "name": "a" * 64}, {**LOOK_UP, "name": "-_9"}],
        "temperature": 0,
        "top_p": 0,
    }
    async with serving() as s:
        made = await s.create(body)
    assert made["metadata"] == body["metadata"]
    assert made["temperature"] == 0


async def test_an_unknown_model_is_refused_before_anything_starts(store):
    """With routes, a name that leads nowhere is a 400 that names the model and the known ones."""
    models = {"known": ModelRoute(upstreams=("default",))}
    async with serving(store=store, models=models) as s:
        for body in ({"input": "hi"}, {"input": "hi", "stream": True}, {"input": "hi", "background": True}):
            answer = await s.post({"model": "unknown", **body})
            assert answer.status == 400
            assert answer.error["code"] == "model_not_found"
            assert answer.error["param"] == "model"
            assert "known" in answer.error["message"]
        assert await assert_nothing_hangs(s) == ()
        assert (await s.post({"model": "known", "input": "hi"})).status == 200


async def test_an_unknown_previous_response_is_a_400(store):
    """404 is for ids in the path only."""
    async with serving(store=store) as s:
        for previous in ("resp_none", "%", "", "resp_" + "x" * 5000):
            answer = await s.post({"model": "fake", "input": "hi", "previous_response_id": previous})
            assert answer.status == 400
            assert answer.error["param"] == "previous_response_id"
            assert answer.error["code"] == "previous_response_not_found"


async def test_an_output_without_its_call_is_named(store):
    """The message is the one that official clients know."""
    async with serving(store=store) as s:
        output = {"type": "function_call_output", "call_id": "call_7", "output": "x"}
        answer = await s.post({"model": "fake", "input": [output]})
        assert answer.status == 400
        assert answer.error["message"] == "No tool call found for function call output with call_id call_7."
        call = {"type": "function_call", "call_id": "call_7", "name": "f", "arguments": "{}"}
        after = await s.post({"model": "fake", "input": [output, call]})
        assert after.status == 400
        assert (await s.post({"model": "fake", "input": [call, output]})).status == 200


async def test_an_unanswered_call_is_named(store):
    """A call of the turn before that nobody answered is refused with its id."""
    script = turns_script([Turn(calls=(ScriptedCall("look_up"), ScriptedCall("look_up")))])
    async with serving(script, store=store) as s:
        made = await s.create({"input": "hi", "tools": [LOOK_UP]})
        first, second = (item["call_id"] for item in made["output"])
        body = {"model": "fake", "previous_response_id": made["id"]}
        nothing = await s.post({**body, "input": "go on"})
        assert nothing.status == 400
        assert nothing.error["message"].startswith(f"No tool output found for function call {first}")
        half = await s.post(
            {**body, "input": [{"type": "function_call_output", "call_id": first, "output": "x"}]}
        )
        assert half.status == 400
        assert half.error["message"].startswith(f"No tool output found for function call {second}")


async def test_continuing_what_still_runs_is_a_conflict(store):
    """A response that has not ended cannot be continued yet."""
    async with serving(store=store) as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        begun = await s.create({"input": "hi", "background": True})
        answer = await s.post({"model": "fake", "input": "more", "previous_response_id": begun["id"]})
        assert answer.status == 409
        assert answer.error["type"] == "conflict_error"
        s.upstream.release()
        await s.until_status(begun["id"], "completed")


async def test_nul_in_a_tools_output_harms_nobody(store):
    """A tool may give NUL characters and lone surrogates: the response completes and can be continued."""

    @tool(effect="pure")
    async def raw() -> str:
        """Gives raw bytes."""
        return "a\x00b"

    @tool(effect="pure")
    async def broken() -> str:
        """Gives half a character."""
        return "a\ud83d"

    script = turns_script([Turn(calls=(ScriptedCall("raw"), ScriptedCall("broken"))), Turn(text="Done.")])
    async with serving(script, store=store, tools=[raw, broken]) as s:
        events = await s.stream({"input": "hi"})
        response = events[-1]["response"]
        assert response["status"] == "completed"
        assert response["output"][0]["output"].startswith("a\ufffdb")
        assert "\\u0000" not in json.dumps(response)
        assert (await s.get(f"/v1/responses/{response['id']}")).json == response
        await s.create({"input": "more", "previous_response_id": response["id"]})


async def test_nul_from_the_model_harms_nobody(store):
    """A model that writes NUL characters does not break the response, its storage or its stream."""
    call = ScriptedCall("look_up", {"what": "x\x00y"})
    async with serving(turns_script([Turn(text="a\x00b", calls=(call,))]), store=store) as s:
        events = await s.stream({"input": "hi", "tools": [LOOK_UP]})
        made = await s.create({"input": "hi", "tools": [LOOK_UP]})
        for response in (events[-1]["response"], made):
            assert response["status"] == "completed"
            assert (await s.get(f"/v1/responses/{response['id']}")).json == response


# --- bodies ------------------------------------------------------------------------------------------


async def test_text_beyond_the_limit_is_refused_by_name():
    """Ten megabytes of text are too much, in one string or in many; the answer says how much there was."""
    text = "x" * (20 * 1024 * 1024)
    async with serving() as s:
        for given in (text, [{"role": "user", "content": text[:6_000_000]}] * 2):
            answer = await s.post({"model": "fake", "input": given})
            assert answer.status == 400
            assert answer.error["param"] == "input"
            assert len(answer.raw) < 2000
        assert await assert_nothing_hangs(s) == ()


async def test_images_of_several_megabytes_pass():
    """A data URL below its own limit does not count as text."""
    url = "data:image/png;base64," + "A" * (12 * 1024 * 1024)
    parts = [{"type": "input_text", "text": "what is it?"}, {"type": "input_image", "image_url": url}]
    async with serving() as s:
        made = await s.create({"input": [{"role": "user", "content": parts}]})
        assert made["status"] == "completed"
        assert s.upstream.requests[0].body["messages"][0]["content"][1]["image_url"]["url"] == url
        parts[1]["image_url"] = url + "A" * (9 * 1024 * 1024)
        answer = await s.post({"model": "fake", "input": [{"role": "user", "content": parts}]})
        assert answer.status == 400
        assert answer.error["param"] == "input[0].content[1].image_url"


async def test_a_body_above_the_bound_is_413():
    """Refused by its declared length, and when it is sent in pieces without one."""
    async with serving(options=ServerOptions(max_body_bytes=100_000)) as s:
        body = json.dumps({"model": "fake", "input": "x" * 200_000}).encode()

        async def pieces():
            for start in range(0, len(body), 8192):
                yield body[start : start + 8192]

        for data in (body, pieces()):
            answer = await s.ask("POST", "/v1/responses", data=data)
            assert answer.status == 413
            assert answer.error["code"] == "request_too_large"
        assert (await s.post({"model": "fake", "input": "small"})).status == 200


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_compressed_bodies_are_read(encoding):
    """A compressed body is the same request as the plain one."""
    plain = json.dumps({"model": "fake", "input": "hello " * 1000}).encode()
    packed = gzip.compress(plain) if encoding == "gzip" else zlib.compress(plain)
    async with serving() as s:
        answer = await s.ask("POST", "/v1/responses", data=packed, headers={"Content-Encoding": encoding})
        assert answer.status == 200, answer.raw
        assert s.upstream.requests[0].body["messages"][0]["content"] == "hello " * 1000


async def test_a_bomb_does_not_go_off():
    """A small body that unpacks to more than the bound is a 413, and costs no more than the bound."""
    bomb = gzip.compress(b"[" + b" " * 60_000_000, 9)
    assert len(bomb) < 1_000_000
    async with serving(options=ServerOptions(max_body_bytes=1_000_000)) as s:
        answer = await s.ask("POST", "/v1/responses", data=bomb, headers={"Content-Encoding": "gzip"})
        assert answer.status == 413
        assert answer.error["code"] == "request_too_large"


@pytest.mark.parametrize(
    ("data", "encoding", "status"),
    [(b"not gzip", "gzip", 400), (gzip.compress(b"{}" * 5000)[:-9], "gzip", 400), (gzip.compress(b"{}") * 2, "gzip", 400), (b"{}", "br", 415), (b"{}", "x" * 300, 415)],
    ids=["no gzip", "cut gzip", "gzip twice", "brotli", "nonsense"],
)  # fmt: skip
async def test_bodies_that_cannot_be_unpacked(data, encoding, status):
    """Broken or unknown compression is told as such."""
    async with serving() as s:
        answer = await s.ask("POST", "/v1/responses", data=data, headers={"Content-Encoding": encoding})
        assert answer.status == status
        assert answer.error["type"] == "invalid_request_error"


async def test_a_client_that_hangs_up_in_its_body_leaves_nothing():
    """Half a body starts nothing, and the server goes on."""
    async with serving() as s:
        host, _, port = s.url.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b'POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{"model"')
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await s.post({"model": "fake", "input": "hi"})).status == 200
        assert len(await assert_nothing_hangs(s)) == 1
