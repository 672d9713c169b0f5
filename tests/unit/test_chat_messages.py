"""Conversations as chat messages."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain.errors import InvalidRequestError
from antiphon.domain.ids import call_id_of, made_id
from antiphon.upstream.chat.messages import chat_messages

Item = dict[str, Any]

A, B = "a" * 24 + "00", "b" * 24 + "00"


def user(text: str) -> Item:
    return {"role": "user", "content": text}


def said(text: str, stem: str | None = None, index: int = 0) -> Item:
    item: Item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return {**item, "id": made_id("msg", stem, index)} if stem else item


def call(call_id: str, stem: str | None = None, index: int = 0) -> Item:
    item: Item = {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}
    return {**item, "id": made_id("fc", stem, index)} if stem else item


def output(call_id: str, text: Any = "ok") -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def mcp(stem: str, index: int, **fields: Any) -> Item:
    return {
        "type": "mcp_call",
        "id": made_id("mcp", stem, index),
        "server_label": "s",
        "name": "g",
        "arguments": '{"x":1}',
        "output": "ran",
        "error": None,
        **fields,
    }


def thought(stem: str | None = None) -> Item:
    item: Item = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    return {**item, "id": made_id("rs", stem, 99)} if stem else item


def shape(items: list[Item], **options: Any) -> list[Any]:
    """Each message in short: its role, with the ids of the calls it holds or answers."""
    short: list[Any] = []
    for message in chat_messages(items, **options):
        match message:
            case {"tool_calls": calls}:
                short.append(("assistant", message["content"], *(each["id"] for each in calls)))
            case {"role": "tool"}:
                short.append(("tool", message["tool_call_id"]))
            case {"role": role, "content": content}:
                short.append((role, content))
    return short


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("hi", "hi"),
        (None, ""),
        ([], ""),
        ([{"type": "input_text", "text": "hi"}], "hi"),
        ([{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "unheard_of", "text": "a"}, {"type": "input_text", "text": "b"}], "b"),
        (
            [
                {"type": "input_text", "text": "see"},
                {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"},
            ],
            [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}},
            ],
        ),
        (
            [{"type": "input_image", "image_url": "https://x/y.png", "detail": None, "file_id": None}],
            [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}],
        ),
        (
            [{"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"}],
            [{"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"}}],
        ),
        ([{"type": "input_file", "file_id": "file_1"}], [{"type": "file", "file": {"file_id": "file_1"}}]),
        (
            [{"type": "input_file", "file_url": "https://x/a.pdf"}],
            [{"type": "file", "file": {"file_data": "https://x/a.pdf"}}],
        ),
    ],
)
def test_user_content(content: Any, expected: Any) -> None:
    """Text alone is a string, which every template takes; images and files make it a list."""
    assert chat_messages([{"role": "user", "content": content}]) == [{"role": "user", "content": expected}]


def test_assistant_content() -> None:
    """What a model said comes back as it was said, refusals too, without anything between the parts."""
    content = [
        {"type": "output_text", "text": "a", "annotations": []},
        {"type": "output_text", "text": "b"},
        {"type": "refusal", "refusal": "c"},
    ]
    assert chat_messages([{"type": "message", "role": "assistant", "content": content}]) == [
        {"role": "assistant", "content": "abc"}
    ]


def test_instructions_lead() -> None:
    """Instructions come first; system and developer messages at the front join them, later ones stay."""
    items = [
        {"role": "developer", "content": "be brief"},
        {"role": "system", "content": [{"type": "input_text", "text": "be kind"}]},
        user("hi"),
        {"role": "developer", "content": "now in Polish"},
    ]
    assert shape(items, instructions="be good") == [
        ("system", "be good\n\nbe brief\n\nbe kind"),
        ("user", "hi"),
        ("system", "now in Polish"),
    ]


def test_developer_role_is_kept_where_it_is_known() -> None:
    """A server that knows developers gets them as they are."""
    items = [{"role": "developer", "content": "be brief"}, user("hi")]
    assert shape(items, instructions="be good", developer_role="developer") == [
        ("system", "be good"),
        ("developer", "be brief"),
        ("user", "hi"),
    ]


def test_one_answer_is_one_message() -> None:
    """Reasoning, text and calls with one stem: one message, its results right behind it."""
    items = [
        user("hi"),
        thought(A),
        said("let me see", A, 0),
        call("c1", A, 1),
        mcp(A, 2),
        output("c1"),
    ]
    made = call_id_of(made_id("mcp", A, 2))
    assert chat_messages(items) == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "let me see",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": made, "type": "function", "function": {"name": "g", "arguments": '{"x":1}'}},
            ],
        },
        {"role": "tool", "tool_call_id": made, "content": "ran"},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]


def test_content_is_null_when_there_are_only_calls() -> None:
    """No text is not the same as empty text."""
    assert shape([call("c1"), output("c1")]) == [("assistant", None, "c1"), ("tool", "c1")]


def test_call_id_of_a_call_that_we_ran() -> None:
    """It is made of the item's id, so that every turn makes the same."""
    assert call_id_of("mcp_0123") == "call_0123"


def test_two_stems_are_two_answers() -> None:
    """Adjacent items of two answers are not merged, whatever they are."""
    first, second = mcp(A, 0), mcp(B, 0)
    ids = [call_id_of(item["id"]) for item in (first, second)]
    assert shape([first, second, said("done", B, 1), said("more", A, 1)]) == [
        ("assistant", None, ids[0]),
        ("tool", ids[0]),
        ("assistant", "done", ids[1]),
        ("tool", ids[1]),
        ("assistant", "more"),
    ]


def test_text_around_calls_of_one_answer() -> None:
    """Text before and after a call is one text again, as the model said it."""
    assert shape([said("a", A, 0), call("c1", A, 1), said("b", A, 2), output("c1")]) == [
        ("assistant", "ab", "c1"),
        ("tool", "c1"),
    ]


def test_call_and_result_by_turns_within_one_answer() -> None:
    """A client that lists each result right after its call does not split our answer."""
    items = [call("c1", A, 0), output("c1"), call("c2", A, 1), output("c2")]
    assert shape(items) == [("assistant", None, "c1", "c2"), ("tool", "c1"), ("tool", "c2")]


def test_foreign_items_merge_by_neighbourhood() -> None:
    """Calls side by side are one answer, with the text before them; a result, reasoning or text ends it."""
    items = [
        said("let me see"),
        call("c1"),
        call("c2"),
        output("c1"),
        output("c2"),
        call("c3"),
        output("c3"),
        thought(),
        call("c4"),
        thought(),
        call("c5"),
        said("so"),
        said("well"),
        output("c4"),
        output("c5"),
    ]
    assert shape(items) == [
        ("assistant", "let me see", "c1", "c2"),
        ("tool", "c1"),
        ("tool", "c2"),
        ("assistant", None, "c3"),
        ("tool", "c3"),
        ("assistant", None, "c4"),
        ("tool", "c4"),
        ("assistant", None, "c5"),
        ("tool", "c5"),
        ("assistant", "so"),
        ("assistant", "well"),
    ]


def test_other_peoples_words_end_an_answer() -> None:
    """Calls behind a user's message are not those of the answer before it."""
    assert shape([said("a"), user("go on"), call("c1"), output("c1")]) == [
        ("assistant", "a"),
        ("user", "go on"),
        ("assistant", None, "c1"),
        ("tool", "c1"),
    ]


def test_foreign_items_never_join_an_answer_of_ours() -> None:
    """A new turn's input cannot change the turn before it."""
    assert shape([said("done", A), call("c1"), output("c1")]) == [
        ("assistant", "done"),
        ("assistant", None, "c1"),
        ("tool", "c1"),
    ]


def test_results_are_moved_to_their_calls() -> None:
    """User text between the results of one answer does not stand between them on the way up."""
    items = [call("c1", A, 0), call("c2", A, 1), output("c1"), user("hurry"), output("c2")]
    assert shape(items) == [
        ("assistant", None, "c1", "c2"),
        ("tool", "c1"),
        ("tool", "c2"),
        ("user", "hurry"),
    ]


def test_call_ids_that_are_used_again() -> None:
    """A foreign server's `call_0` in every turn: the result belongs to the call that is open."""
    items = [call("call_0"), output("call_0", "one"), user("again"), call("call_0"), output("call_0", "two")]
    assert [m["content"] for m in chat_messages(items) if m["role"] == "tool"] == ["one", "two"]


def test_a_second_result_for_the_same_call() -> None:
    """The first result stands."""
    items = [call("c1"), output("c1", "one"), output("c1", "two")]
    assert [m["content"] for m in chat_messages(items)] == [None, "one"]


@pytest.mark.parametrize(
    ("given_output", "expected"),
    [
        ("text", "text"),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], "a\nb"),
        ({"b": 1, "a": 2}, '{"a":2,"b":1}'),
        (None, ""),
    ],
)
def test_forms_of_results(given_output: Any, expected: str) -> None:
    """Strings, parts, and JSON from clients that forget to make it a string."""
    assert chat_messages([call("c1"), output("c1", given_output)])[1]["content"] == expected


def test_custom_tools_are_functions_with_one_input() -> None:
    """Their raw input travels as the argument `input`."""
    items = [
        {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
    ]
    messages = chat_messages(items)
    function = messages[0]["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("patch", {"input": "*** Begin"})
    assert messages[1] == {"role": "tool", "tool_call_id": "c1", "content": "done"}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "no disk"}]}, "no disk"),
        ({"type": "http_error", "code": 500, "message": "no answer"}, "no answer"),
        ("plain", "plain"),
        ({"code": 1}, '{"code":1}'),
    ],
)
def test_failed_calls_of_ours(error: Any, expected: str) -> None:
    """The model hears what went wrong with a call that we ran."""
    assert chat_messages([mcp(A, 0, output=None, error=error)])[1]["content"] == expected


def test_what_is_passed_over() -> None:
    """Items that only matter between client and server, and unknown ones, are not shown to a model."""
    items = [
        {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []},
        {"type": "mcp_approval_request", "id": "mcpr_1", "name": "g", "arguments": "{}"},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"},
        thought(),
        {"nothing": "known"},
    ]
    assert chat_messages(items) == []


def test_compaction_with_a_summary() -> None:
    """A summary stands for what it sums up."""
    summary = [{"type": "summary_text", "text": "we met"}]
    [message] = chat_messages([{"type": "compaction", "summary": summary}])
    assert message["role"] == "user"
    assert "we met" in message["content"]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "item_reference", "id": "msg_1"},
        {"type": "function_call_output", "call_id": "nobody", "output": "x"},
        {"type": "function_call", "name": "f", "arguments": "{}"},
        {"role": "tool", "content": "x"},
        {"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]},
    ],
)
def test_what_cannot_be_shown(item: Item) -> None:
    """Unresolved references, results without calls, unknown roles, stored images: the caller's mistake."""
    with pytest.raises(InvalidRequestError) as caught:
        chat_messages([item])
    assert caught.value.param == "input"


def test_items_are_not_changed() -> None:
    """Rendering leaves the history as it is, and renders it the same again."""
    items = [user("hi"), said("a", A, 0), call("c1", A, 1), output("c1"), mcp(B, 0), said("b", B, 1)]
    before = msgspec.json.encode(items)
    assert chat_messages(items) == chat_messages(items)
    assert msgspec.json.encode(items) == before


@st.composite
def turns(draw: st.DrawFn) -> list[tuple[list[Item], list[Item]]]:
    """Valid conversations: per turn its input (answers to open calls first or last) and its output."""
    made: list[tuple[list[Item], list[Item]]] = []
    open_calls: list[str] = []
    stems = iter(range(10_000))
    text = st.text("abć", max_size=4)
    for _ in range(draw(st.integers(1, 5))):
        new: list[Item] = [
            draw(
                st.one_of(
                    text.map(user),
                    text.map(said),
                    text.map(lambda t: {"role": "developer", "content": t}),
                    text.map(lambda t: {"role": "user", "content": [{"type": "input_text", "text": t}]}),
                    st.just(thought()),
                    st.just({"type": "mcp_list_tools", "id": "mcpl_1"}),
                )
            )
            for _ in range(draw(st.integers(0, 3)))
        ]
        if draw(st.booleans()):
            foreign = [f"call_{draw(st.integers(0, 1))}{n}" for n in range(draw(st.integers(1, 2)))]
            new += [call(call_id) for call_id in foreign] + [output(call_id) for call_id in foreign]
        new.append(user(draw(text)))
        for call_id in open_calls:
            new.insert(draw(st.integers(0, len(new))), output(call_id))
        open_calls = []
        out: list[Item] = []
        for _ in range(draw(st.integers(1, 3))):
            stem = f"{next(stems):024x}00"
            out += [thought(stem)] * draw(st.integers(0, 1))
            out += [said(draw(text), stem, n) for n in range(draw(st.integers(0, 2)))]
            out += [mcp(stem, 8 + n) for n in range(draw(st.integers(0, 2)))]
        if draw(st.booleans()):
            open_calls = [f"{stem}-{n}" for n in range(draw(st.integers(1, 2)))]
            out += [call(call_id, stem, 4 + n) for n, call_id in enumerate(open_calls)]
        made.append((new, out))
    return made


def encoded(items: list[Item]) -> bytes:
    return msgspec.json.encode(chat_messages(items, instructions="be good"))[:-1]


@given(turns())
def test_longer_conversations_begin_with_shorter_ones(
    conversation: list[tuple[list[Item], list[Item]]],
) -> None:
    """At each border, of inputs as of outputs, the bytes sent before are the beginning of the bytes sent."""
    items: list[Item] = []
    sent = b""
    for new, out in conversation:
        for more in (new, out):
            items = [*items, *more]
            now = encoded(items)
            assert now.startswith(sent)
            sent = now


@given(turns())
def test_results_always_follow_their_calls(conversation: list[tuple[list[Item], list[Item]]]) -> None:
    """What a chat server demands holds for every valid conversation at the border of an input."""
    items: list[Item] = []
    for new, out in conversation:
        items += new
        awaited: set[str] = set()
        for message in chat_messages(items):
            if message["role"] == "tool":
                assert message["tool_call_id"] in awaited
                awaited.remove(message["tool_call_id"])
            else:
                assert not awaited
                awaited = {each["id"] for each in message.get("tool_calls", ())}
        assert not awaited
        items += out
