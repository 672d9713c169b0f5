"""What chat servers answer, in all their dialects."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain.errors import UpstreamBrokenError
from antiphon.domain.inference import (
    CallDelta,
    InferenceEvent,
    InferenceFinished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from antiphon.domain.usage import Usage
from antiphon.upstream.chat.answer import StreamedAnswer, whole_answer


def payload(delta: dict | None = None, finish: str | None = None, **fields: object) -> bytes:
    return json.dumps({"choices": [{"delta": delta or {}, "finish_reason": finish}], **fields}).encode()


def call(**fields: object) -> bytes:
    function = {name: fields.pop(name) for name in ("name", "arguments") if name in fields}
    return payload({"tool_calls": [{**fields, "function": function}]})


def events_of(*payloads: bytes) -> list[InferenceEvent]:
    answer = StreamedAnswer()
    events = [event for one in payloads for event in answer.feed([one])]
    return [*events, answer.finished()]


def calls_of(*payloads: bytes) -> list[tuple[str, str]]:
    calls: dict[int, tuple[str, str]] = {}
    for event in events_of(*payloads, payload(finish="tool_calls")):
        if isinstance(event, CallDelta):
            name, arguments = calls.get(event.index, ("", ""))
            calls[event.index] = (name + event.name, arguments + event.arguments)
    assert list(calls) == list(range(len(calls)))
    return list(calls.values())


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        ({"content": "a"}, [TextDelta("a")]),
        ({"content": ""}, []),
        ({"content": None}, []),
        ({"reasoning_content": "r"}, [ReasoningDelta("r")]),
        ({"reasoning": "r"}, [ReasoningDelta("r")]),
        ({"reasoning": "r", "reasoning_content": "r"}, [ReasoningDelta("r")]),
        ({"reasoning": "r", "content": "a"}, [ReasoningDelta("r"), TextDelta("a")]),
        ({"refusal": "no"}, [RefusalDelta("no")]),
        ({"content": "<think>x</think>"}, [TextDelta("<think>x</think>")]),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "r"}]},
                    {"type": "text", "text": "a"},
                ]
            },
            [ReasoningDelta("r"), TextDelta("a")],
        ),
        (
            {
                "content": "a",
                "tool_calls": [{"index": 0, "id": "x", "function": {"name": "f", "arguments": ""}}],
            },
            [TextDelta("a"), CallDelta(0, "f", "")],
        ),
    ],
)
def test_deltas(delta: dict, expected: list[InferenceEvent]) -> None:
    """Each field of a delta becomes its event, in the order in which a model thinks and speaks."""
    assert StreamedAnswer().feed([payload(delta)]) == expected


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param(
            [
                call(index=0, id="a", name="f", arguments=""),
                call(index=0, arguments="{"),
                call(index=0, arguments="}"),
            ],
            [("f", "{}")],
            id="as OpenAI",
        ),
        pytest.param(
            [
                call(index=1, id="b", name="g", arguments="{}"),
                call(index=0, id="a", name="f", arguments="{}"),
            ],
            [("g", "{}"), ("f", "{}")],
            id="indexes out of order",
        ),
        pytest.param(
            [
                call(id="a", name="f", arguments="{"),
                call(arguments="}"),
                call(id="b", name="g", arguments="{}"),
            ],
            [("f", "{}"), ("g", "{}")],
            id="no index",
        ),
        pytest.param(
            [
                call(id="a", name="f", arguments="{"),
                call(id="b", name="g", arguments="{"),
                call(id="a", arguments="}"),
                call(id="b", arguments="}"),
            ],
            [("f", "{}"), ("g", "{}")],
            id="no index, interleaved by id",
        ),
        pytest.param(
            [
                call(index=0, id="a", name="f", arguments="{}"),
                call(index=0, id="b", name="f", arguments="{}"),
            ],
            [("f", "{}"), ("f", "{}")],
            id="index 0 with new ids",
        ),
        pytest.param(
            [call(name="f", arguments='{"a":1}'), call(name="f", arguments='{"a":2}')],
            [("f", '{"a":1}'), ("f", '{"a":2}')],
            id="whole calls without index and id",
        ),
        pytest.param(
            [call(index=0, name="f", arguments='{"a":1}'), call(index=0, name="g", arguments='{"a":2}')],
            [("f", '{"a":1}'), ("g", '{"a":2}')],
            id="whole calls, always index 0, no id",
        ),
        pytest.param(
            [
                payload(
                    {
                        "tool_calls": [
                            {"function": {"name": "f", "arguments": {"b": 1, "a": 2}}},
                            {"function": {"name": "g", "arguments": None}},
                        ]
                    }
                )
            ],
            [("f", '{"a":2,"b":1}'), ("g", "")],
            id="arguments as an object, or null",
        ),
        pytest.param(
            [
                call(index=0, id="a", name="f", arguments='{"x"'),
                call(index=0, id="a", name="f", arguments=":1}"),
            ],
            [("f", '{"x":1}')],
            id="the name in every piece",
        ),
        pytest.param(
            [call(index=0, id="a", name="f", arguments='{"x"'), call(index=0, id="zz", arguments=":1}")],
            [("f", '{"x":1}')],
            id="a new id for every piece",
        ),
        pytest.param(
            [
                call(index=0, id="a", name="f", arguments="{}"),
                call(index=0, id="a", name="f", arguments="{}"),
            ],
            [("f", "{}")],
            id="the whole call repeated at the end",
        ),
        pytest.param(
            [
                call(index=0, id="a", name="get_"),
                call(index=0, name="weather"),
                call(index=0, arguments="{}"),
            ],
            [("get_weather", "{}")],
            id="the name in pieces",
        ),
        pytest.param(
            [
                payload({"function_call": {"name": "f", "arguments": ""}}),
                payload({"function_call": {"arguments": "{}"}}),
            ],
            [("f", "{}")],
            id="function_call of old",
        ),
        pytest.param(
            [call(index=None, id=None, name="f", arguments="{}"), payload({"tool_calls": None})],
            [("f", "{}")],
            id="nulls",
        ),
    ],
)
def test_dialects_of_calls(pieces: list[bytes], expected: list[tuple[str, str]]) -> None:
    """However a server numbers its calls, each piece finds its own."""
    assert calls_of(*pieces) == expected


@given(
    texts=st.lists(st.text('{}ab1":,', min_size=1, max_size=8), min_size=1, max_size=5),
    order=st.randoms(use_true_random=False),
)
def test_interleaved_pieces_are_never_mixed(texts: list[str], order) -> None:
    """Character by character, in any order among the calls, each call's arguments stay whole."""
    left = {index: list(text) for index, text in enumerate(texts)}
    wire = [call(index=index, id=f"c{index}", name=f"f{index}", arguments="") for index in left]
    while any(left.values()):
        index = order.choice([index for index, rest in left.items() if rest])
        wire.append(call(index=index, arguments=left[index].pop(0)))
    assert calls_of(*wire) == [(f"f{index}", text) for index, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("given_reason", "expected"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("tool_calls", "tool_calls"),
        ("function_call", "tool_calls"),
        ("content_filter", "content_filter"),
        ("eos", "stop"),
    ],
)
def test_finish_reasons(given_reason: str, expected: str) -> None:
    """Servers' words for the end are brought to four."""
    assert events_of(payload({"content": "a"}), payload(finish=given_reason))[-1].finish_reason == expected


def test_stop_after_calls_means_calls() -> None:
    """A server that says `stop` after calling tools has called tools."""
    finished = events_of(call(index=0, id="a", name="f", arguments="{}"), payload(finish="stop"))[-1]
    assert finished.finish_reason == "tool_calls"


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_answer_that_was_broken_off(reason: str) -> None:
    """A server that says it gave up has not answered."""
    with pytest.raises(UpstreamBrokenError):
        events_of(payload({"content": "a"}), payload(finish=reason))


def test_done_without_finish_reason() -> None:
    """`[DONE]` ends an answer that has said something, and only that."""
    answer = StreamedAnswer()
    answer.feed([payload({"content": "a"}), b"[DONE]"])
    assert answer.finished().finish_reason == "stop"
    silent = StreamedAnswer()
    silent.feed([b"[DONE]"])
    with pytest.raises(UpstreamBrokenError):
        silent.finished()


def test_usage_before_and_after_the_end() -> None:
    """Usage counts from wherever it stands, the last one wins, and gaps in it are zero."""
    answer = StreamedAnswer()
    answer.feed([payload({"content": "a"}, usage={"prompt_tokens": 1, "completion_tokens": 1})])
    answer.feed(
        [payload(finish="stop"), b'{"usage": {"prompt_tokens": 2, "completion_tokens": null}, "model": "m"}']
    )
    assert answer.finished() == InferenceFinished("stop", Usage(input_tokens=2, total_tokens=2), "m")


def test_odd_usage_does_not_spoil_an_answer() -> None:
    """Numbers in strings are read; usage of another shape is left out; the text is kept."""
    answer = StreamedAnswer()
    assert answer.feed([payload({"content": "a"}, usage={"prompt_tokens": "3"})]) == [TextDelta("a")]
    assert answer.feed([payload({"content": "b"}, finish="stop", usage="many")]) == [TextDelta("b")]
    assert answer.finished().usage == Usage(input_tokens=3, total_tokens=3)


@pytest.mark.parametrize("rest", [b"{garbage", b'{"error": {"message": "late"}}', b"{}"])
@pytest.mark.parametrize("at_once", [True, False])
def test_nothing_takes_back_an_answer_that_has_ended(rest: bytes, at_once: bool) -> None:
    """Errors behind the finish reason are no part of the answer, however they are cut."""
    answer = StreamedAnswer()
    payloads = [payload({"content": "a"}), payload(finish="stop"), rest]
    batches = [payloads] if at_once else [[each] for each in payloads]
    assert [event for batch in batches for event in answer.feed(batch)] == [TextDelta("a")]
    assert answer.finished().finish_reason == "stop"


def test_other_choices_are_not_mixed_in() -> None:
    """Only the first choice is the answer."""
    body = {"choices": [{"index": 1, "delta": {"content": "b"}}, {"index": 0, "delta": {"content": "a"}}]}
    assert StreamedAnswer().feed([json.dumps(body).encode()]) == [TextDelta("a")]


def test_a_closing_message_does_not_repeat_the_text() -> None:
    """A server that sends the whole message after its deltas has said it once."""
    closing = b'{"choices": [{"message": {"content": "ab"}, "finish_reason": "stop"}]}'
    payloads = [payload({"content": "a"}), payload({"content": "b"}), closing]
    assert events_of(*payloads)[:-1] == [TextDelta("a"), TextDelta("b")]
    assert StreamedAnswer().feed(payloads) == [TextDelta("a"), TextDelta("b")]


def test_a_whole_answer_without_finish_reason() -> None:
    """The document is complete, and so is the answer."""
    events = whole_answer(b'{"choices": [{"message": {"content": "a"}}]}')
    assert events == [TextDelta("a"), InferenceFinished()]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"1",
        b'"text"',
        b"{",
        b"[1]",
        b'{"choices": [{"delta": {"content": 1}}]}',
        b"[" * 100_000,
    ],
)
def test_unreadable_payloads(body: bytes) -> None:
    """What is not a chunk is refused in our own words, whatever it is."""
    with pytest.raises(UpstreamBrokenError):
        StreamedAnswer().feed([body])


@given(st.binary(max_size=200))
def test_no_bytes_escape_the_error_tree(body: bytes) -> None:
    """Whatever a server sends, the failure is one of ours."""
    try:
        whole_answer(body)
    except UpstreamBrokenError:
        return
    pytest.fail("random bytes are no answer")
