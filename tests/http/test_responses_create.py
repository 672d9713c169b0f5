"""`POST /v1/responses` and what it gives back: JSON, streams, background; echoes, defaults, sums."""

import pytest

from antiphon import tool
from antiphon.testing import FaultKind, ScriptedCall, Turn, answer_script, fold, turns_script
from serving import judge, judge_response, read_stream, serving, text_of, types

pytestmark = pytest.mark.anyio

FUNCTION = {
    "type": "function",
    "name": "look_up",
    "description": "Looks something up.",
    "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
    "strict": False,
}


@tool(effect="pure")
async def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'work.db'}"


async def test_a_response_as_json_is_whole_and_stored(store):
    """What POST answers is the whole object, and GET gives the same."""
    async with serving(answer_script("Hello there."), store=store) as s:
        made = await s.create({"input": "hi"})
        assert made["status"] == "completed"
        assert text_of(made).endswith("Hello there.")
        assert made["output"][0]["status"] == "completed"
        assert made["output"][0]["content"][0]["annotations"] == []
        assert isinstance(made["created_at"], int)
        assert (await s.get(f"/v1/responses/{made['id']}")).json == made


async def test_absent_parameters_have_the_wires_defaults():
    """What may be null is null, what may not is its default, in every answer."""
    async with serving() as s:
        made = await s.create({"input": "hi"})
    nulls = (
        "error", "incomplete_details", "instructions", "max_output_tokens", "max_tool_calls",
        "previous_response_id", "prompt_cache_key", "reasoning", "safety_identifier",
    )  # fmt: skip
    assert all(made[key] is None for key in nulls)
    assert made["temperature"] == made["top_p"] == 1.0
    assert made["store"] is True
    assert made["service_tier"] == "default"
    assert made["text"] == {"format": {"type": "text"}}
    assert made["truncation"] == "disabled"
    assert made["tools"] == []
    assert made["metadata"] == {}
    assert made["completed_at"] >= made["created_at"]


async def test_parameters_are_echoed_as_given(store):
    """Tools, formats and all else that was sent come back unchanged, also after a read from disk."""
    sent = {
        "input": "hi",
        "instructions": "Be brief.",
        "tools": [FUNCTION],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "text": {
            "format": {
                "type": "json_schema",
                "name": "answer",
                "schema": {"type": "object", "properties": {"a": {"type": "string"}}},
                "strict": True,
            },
            "verbosity": "low",
        },
        "reasoning": {"effort": "low"},
        "temperature": 0.25,
        "top_p": 0.5,
        "max_output_tokens": 4000,
        "max_tool_calls": 7,
        "metadata": {"who": "me"},
        "truncation": "auto",
        "safety_identifier": "user-1",
        "prompt_cache_key": "key-1",
        "user": "somebody",
    }
    async with serving(store=store) as s:
        made = await s.create(sent)
        again = (await s.get(f"/v1/responses/{made['id']}")).json
        streamed = (await s.stream(sent))[-1]["response"]
    for response in (made, again, streamed):
        assert response["text"]["format"].items() >= sent["text"]["format"].items()
        assert response["text"]["verbosity"] == "low"
        assert response["reasoning"] == {"effort": "low", "summary": None}
        assert response["tools"] == [FUNCTION]
        for key in set(sent) - {"input", "text", "reasoning", "tools"}:
            assert response[key] == sent[key], key
    body = s.upstream.requests[0].body
    assert body["temperature"] == 0.25
    assert body["messages"][0]["content"] == "Be brief."


async def test_nulls_in_a_request_mean_not_given():
    """Clients send null for what they leave out; none of it is an error or comes back where null is wrong."""
    keys = (
        "instructions", "previous_response_id", "tools", "tool_choice", "parallel_tool_calls", "temperature",
        "top_p", "max_output_tokens", "max_tool_calls", "metadata", "include", "text", "reasoning",
        "truncation", "service_tier", "safety_identifier", "prompt_cache_key", "user", "background", "store",
        "stream", "stream_options", "conversation", "top_logprobs", "prompt",
    )  # fmt: skip
    async with serving() as s:
        made = await s.create({"input": "hi", **dict.fromkeys(keys)})
    assert made["temperature"] == 1.0
    assert made["store"] is True
    assert "warnings" not in made


async def test_unknown_parameters_and_tools_are_named_in_warnings():
    """What we do not do is not refused but told."""
    async with serving() as s:
        made = await s.create(
            {"input": "hi", "client_metadata": {"a": 1}, "tools": [FUNCTION, {"type": "web_search"}]}
        )
    assert [tool["type"] for tool in made["tools"]] == ["function", "web_search"]
    assert any("client_metadata" in warning for warning in made["warnings"])
    assert any("web_search" in warning for warning in made["warnings"])
    assert [t["function"]["name"] for t in s.upstream.requests[0].body["tools"]] == ["look_up"]


async def test_forced_choice_of_something_ignored_is_refused():
    """A forced tool that nobody can run is a 400, not a silent miss."""
    async with serving() as s:
        body = {"model": "fake", "input": "hi", "tools": [{"type": "web_search"}]}
        answer = await s.post({**body, "tool_choice": {"type": "web_search"}})
    assert answer.status == 400
    assert answer.error["param"] == "tool_choice"


async def test_usage_sums_all_rounds_of_the_loop(store):
    """Three model calls of one response are counted together, in the response and in its last event."""
    script = turns_script(
        [
            Turn(calls=(ScriptedCall("weather", {"city": "Oslo"}),)),
            Turn(calls=(ScriptedCall("weather", {"city": "Rome"}),)),
            Turn(text="Sunny everywhere."),
        ]
    )
    async with serving(script, store=store, tools=[weather]) as s:
        made = await s.create({"input": "how is it?"})
        events = await s.stream({"input": "how is it?"})
    sent = [len(request.raw) // 4 for request in s.upstream.requests]
    assert len(sent) == 6
    assert made["usage"]["input_tokens"] == sum(sent[:3])
    assert made["usage"]["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}
    assert made["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}
    assert events[-1]["response"]["usage"]["input_tokens"] == sum(sent[3:])
    assert [item["type"] for item in made["output"]] == ["mcp_call", "mcp_call", "message"]
    assert made["output"][0]["output"] == "sunny in Oslo"


async def test_ids_are_the_same_everywhere(store):
    """The response's id and every item's id agree in events, in the final object, in GET and as input later."""
    script = turns_script(
        [Turn(text="One moment.", calls=(ScriptedCall("weather", {"city": "Oslo"}),)), Turn(text="Sunny.")]
    )
    async with serving(script, store=store, tools=[weather]) as s:
        events = await s.stream({"input": "hi"})
        last = events[-1]["response"]
        assert fold(events)["output"] == last["output"]
        assert (await s.get(f"/v1/responses/{last['id']}")).json == last
        follow_up = await s.create({"input": "and now?", "previous_response_id": last["id"]})
        assert follow_up["previous_response_id"] == last["id"]
        references = [{"type": "item_reference", "id": item["id"]} for item in last["output"]]
        by_reference = await s.create({"input": [*references, {"role": "user", "content": "so?"}]})
        assert by_reference["status"] == "completed"


async def test_the_id_is_usable_with_the_first_event():
    """The id in `response.created` can be asked for at once, before the model has said anything."""
    async with serving() as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        async with s.session.post(
            "/v1/responses", json={"model": "fake", "input": "hi", "stream": True}
        ) as r:
            frame = await r.content.readuntil(b"\n\n")
            response_id = frame.split(b'"id":"', 1)[1].split(b'"', 1)[0].decode()
            now = await s.get(f"/v1/responses/{response_id}")
            assert now.status == 200
            assert judge_response(now.json)["status"] == "in_progress"
            s.upstream.release()
            await r.read()


async def test_background_answers_at_once_and_ends_on_its_own(store):
    """A background response is `queued` or `in_progress` when it is given, and completes unwatched."""
    async with serving(answer_script("Done."), store=store) as s:
        s.upstream.inject(FaultKind.HANG_BEFORE_HEADERS)
        begun = await s.create({"input": "hi", "background": True})
        assert begun["status"] in {"queued", "in_progress"}
        assert begun["background"] is True
        assert begun["output"] == []
        assert begun["completed_at"] is None
        s.upstream.release()
        ended = await s.until_status(begun["id"], "completed")
        assert text_of(ended).endswith("Done.")
        events = await s.replay(begun["id"])
        assert events[-1]["response"] == ended


async def test_a_background_stream_is_watched_from_the_start():
    """`background` with `stream` gives the events at once."""
    async with serving() as s:
        events = await s.stream({"input": "hi", "background": True})
    assert types(events)[0] == "response.created"
    assert types(events)[-1] == "response.completed"
    assert events[-1]["response"]["background"] is True


async def test_nothing_is_kept_of_a_response_that_is_not_stored(store):
    """`store: false` answers and streams as usual, and afterwards nobody knows the id."""
    async with serving(store=store) as s:
        made = await s.create({"input": "hi", "store": False})
        events = await s.stream({"input": "hi", "store": False})
        assert made["store"] is False
        for response_id in (made["id"], events[-1]["response"]["id"]):
            for path in ("", "/input_items", "/steps", "?stream=true"):
                assert (await s.get(f"/v1/responses/{response_id}{path}")).status == 404
            chained = await s.post({"model": "fake", "input": "x", "previous_response_id": response_id})
            assert chained.status == 400
            assert chained.error["code"] == "previous_response_not_found"
        assert (await s.get("/v1/responses")).json["data"] == []


async def test_a_response_is_continued_with_all_before_it_in_order(store):
    """`previous_response_id` brings input and output of every earlier turn, and no instructions."""
    async with serving(answer_script("Noted."), store=store) as s:
        previous = None
        for turn in ("one", "two", "three"):
            body = {"input": turn, "previous_response_id": previous}
            if previous is None:
                body["instructions"] = "Only for the first turn."
            previous = (await s.create(body))["id"]
    messages = s.upstream.requests[-1].body["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert [m["content"] for m in messages[::2]] == ["one", "two", "three"]
    assert s.upstream.requests[2].extends(s.upstream.requests[1])


@pytest.mark.parametrize(
    "given",
    [
        "plain",
        [{"role": "user", "content": "no type"}],
        [{"role": "user", "content": [{"type": "input_text", "text": "parts"}]}],
        [{"type": "message", "role": "developer", "content": "dev"}, {"role": "user", "content": "x"}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
        [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}],
        [
            {"role": "user", "content": "x"},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "status": None},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "o"}]},
        ],
        [{"role": "user", "content": "x"}, {"type": "reasoning", "id": "rs_x", "summary": [], "encrypted_content": "foreign"}],
        [
            {"role": "user", "content": "x"},
            {"type": "mcp_call", "id": "mcp_1", "server_label": "l", "name": "n", "arguments": "{}", "output": "o"},
        ],
        [{"role": "user", "content": "x"}, {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "l", "tools": []}],
    ],
    ids=[
        "string", "no type", "parts", "developer", "conversation", "image", "call and output", "reasoning",
        "mcp_call", "mcp_list_tools",
    ],
)  # fmt: skip
async def test_every_form_of_input_that_clients_send_is_taken(given):
    """The forms of WIRE "Input" all pass."""
    async with serving() as s:
        made = await s.create({"input": given})
        assert made["status"] == "completed"
        assert "warnings" not in made


async def test_json_and_stream_of_one_request_agree():
    """The same script gives the same shape of output whichever way it is asked for."""
    script = answer_script("Same.", reasoning="Hm.", varied=False)
    async with serving(script) as s:
        made = await s.create({"input": "hi"})
        streamed = (await s.stream({"input": "hi"}))[-1]["response"]

    def without_ids(response):
        return [{k: v for k, v in item.items() if k != "id"} for item in response["output"]]

    assert without_ids(made) == without_ids(streamed)
    assert set(made) == set(streamed)


async def test_an_unstreamed_response_can_be_streamed_afterwards(store):
    """GET with `stream=true` gives a valid stream of a response that was made as JSON."""
    async with serving(answer_script("Late reader."), store=store) as s:
        made = await s.create({"input": "hi"})
        answer = await s.get(f"/v1/responses/{made['id']}?stream=true")
        events = judge(read_stream(answer))
        assert events[-1]["response"] == made
        for cursor in range(len(events)):
            rest = await s.get(f"/v1/responses/{made['id']}?stream=true&starting_after={cursor}")
            assert read_stream_or_done(rest) == events[cursor + 1 :]


def read_stream_or_done(answer):
    return [] if answer.raw == b"data: [DONE]\n\n" else read_stream(answer)


async def test_the_stream_of_an_unstreamed_response_tells_everything(store):
    """Reasoning, text, calls of both sides: each is told with deltas, for clients that only listen to those."""
    script = turns_script(
        [
            Turn(
                text="One moment.",
                reasoning="Hm.",
                calls=(ScriptedCall("weather", {"city": "Oslo"}), ScriptedCall("look_up", {"what": "x"})),
            )
        ]
    )
    async with serving(script, store=store, tools=[weather]) as s:
        made = await s.create({"input": "hi", "tools": [FUNCTION]})
        events = await s.replay(made["id"])
    assert fold(events)["output"] == made["output"]
    assert {
        "response.reasoning_text.delta", "response.output_text.delta", "response.mcp_call_arguments.delta",
        "response.function_call_arguments.delta",
    } <= set(types(events))  # fmt: skip
