"""Assembly: any interleaving of pieces gives the right items and a valid stream."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon import CallDelta, InferenceFinished, ReasoningDelta, RefusalDelta, Response, TextDelta, Usage
from antiphon.core.assembly import Answer, Calling
from antiphon.core.context import mcp_call
from antiphon.core.narration import Narrator
from antiphon.core.replay import events_of
from antiphon.testing import check_stream, fold
from serving import schemas

STEM = "0" * 24 + "00"
OURS = Calling(label_of=lambda name: "antiphon" if name.startswith("our_") else None)


class Told:
    """One answer, wrapped into a response: what was told of it, and what it amounts to."""

    def __init__(self, pieces, *, calling=OURS, deltas=True, listening=True):
        self.events = []
        narrator = Narrator(self.events.append if listening else None)
        envelope = Response(id="resp_1", model="m", status="in_progress", created_at=1).to_dict()
        body = msgspec.json.encode(envelope)
        narrator.response("response.created", body)
        narrator.response("response.in_progress", body)
        self.answer = Answer(narrator, STEM, calling=calling, deltas=deltas)
        for piece in pieces:
            self.answer.feed(piece)
        self.payload = self.answer.close()
        self.items = self.payload["output"]
        output = []
        for index, item in enumerate(self.items):
            if "server_label" not in item:
                output.append(item)
                continue
            output.append({**mcp_call(item), "status": "completed", "output": "result"})
            narrator.item_event("response.mcp_call.completed", item["id"], index)
            narrator.item_done(index, output[index])
        finish = self.payload["finish_reason"]
        cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(finish)
        ended = {**envelope, "output": output, "status": "incomplete" if cut else "completed"}
        ended |= {"incomplete_details": {"reason": cut}} if cut else {"completed_at": 2}
        narrator.ended(ended["status"], msgspec.json.encode(ended))
        self.output = output
        self.wire = [event.to_dict() for event in self.events]

    @property
    def kinds(self):
        return [item["type"] for item in self.items]

    def check(self, *, deltas=True):
        """The judge of streams and both schemas are content, and the events amount to the output."""
        found = check_stream(self.wire, deltas_optional=not deltas)
        found += [wrong for event in self.wire for wrong in schemas().event(event)]
        assert not found, found
        assert fold(self.wire)["output"] == self.output
        return self


def parts(item):
    return [(part["type"], part.get("text", part.get("refusal"))) for part in item["content"]]


TEXTS = st.text(min_size=0, max_size=12)
NAMES = ["our_tool", "our_other", "their_tool"]


@st.composite
def interleavings(draw):
    """Texts, reasoning and refusals between the pieces of up to four calls, which mix as they like."""
    calls = [
        (draw(st.sampled_from(NAMES)), draw(st.lists(TEXTS, max_size=4)))
        for _ in range(draw(st.integers(0, 4)))
    ]
    waiting = [
        [CallDelta(index, name), *(CallDelta(index, arguments=piece) for piece in pieces)]
        for index, (name, pieces) in enumerate(calls)
    ]
    others = draw(st.lists(st.builds(_piece, st.sampled_from("ttrf"), TEXTS), max_size=8))
    waiting.append(others)
    pieces = []
    while any(waiting):
        source = draw(st.sampled_from([queue for queue in waiting if queue]))
        pieces.append(source.pop(0))
    finish = draw(st.sampled_from(["stop", "tool_calls", "length", "content_filter"]))
    usage = draw(st.none() | st.just(Usage(1, output_tokens=2, total_tokens=3)))
    return calls, [*pieces, InferenceFinished(finish, usage, "real-model")]


def _piece(kind, text):
    return {"t": TextDelta, "r": ReasoningDelta, "f": RefusalDelta}[kind](text)


@settings(max_examples=300, deadline=None)
@given(interleavings(), st.booleans())
def test_any_interleaving_gives_right_items_and_a_valid_stream(drawn, deltas):
    """Nothing is lost, doubled or mixed: texts in order, each call with its own arguments, once."""
    calls, pieces = drawn
    told = Told(pieces, deltas=deltas).check(deltas=deltas)
    assert told.answer.dropped == []
    made = {(i["name"], i["arguments"]) for i in told.items if i["type"] == "function_call"}
    assert made == {(name, "".join(arguments)) for name, arguments in calls}
    assert told.kinds.count("function_call") == len(calls)
    for kind, item_kind, part in (
        (TextDelta, "message", "output_text"),
        (RefusalDelta, "message", "refusal"),
        (ReasoningDelta, "reasoning", "reasoning_text"),
    ):
        expected = "".join(p.text for p in pieces if isinstance(p, kind))
        got = "".join(t for i in told.items if i["type"] == item_kind for k, t in parts(i) if k == part)
        assert got == expected
    ids = [item["id"] for item in told.items]
    assert len(set(ids)) == len(ids)
    call_ids = [item["call_id"] for item in told.items if "call_id" in item]
    assert len(set(call_ids)) == len(call_ids)
    if told.payload["finish_reason"] in {"length", "content_filter"}:
        assert [i["status"] for i in told.items][-1:] in ([], ["incomplete"])
        assert all(i["status"] == "completed" for i in told.items[:-1])
    else:
        assert all(i["status"] == "completed" for i in told.items)


@settings(max_examples=100, deadline=None)
@given(interleavings())
def test_who_listens_changes_nothing(drawn):
    """The items are the same, ids included, with deltas, without, and with nobody listening."""
    _, pieces = drawn
    assert Told(pieces).payload == Told(pieces, deltas=False).payload == Told(pieces, listening=False).payload


@settings(max_examples=100, deadline=None)
@given(interleavings())
def test_an_ended_response_can_be_told_again(drawn):
    """A stream made from the response alone is valid, has the same items, and is always the same."""
    told = Told(drawn[1])
    response = told.wire[-1]["response"]
    again = events_of(response)
    assert not check_stream([e.to_dict() for e in again], deltas_optional=True)
    assert fold(e.to_dict() for e in again)["output"] == response["output"]
    assert again == events_of(response)


def done(finish="stop", **more):
    return InferenceFinished(finish, **more)


def test_reasoning_is_closed_before_text_opens():
    """And opens anew, as an item of its own, when it comes back."""
    told = Told([ReasoningDelta("a"), TextDelta("b"), ReasoningDelta("c"), TextDelta("d"), done()]).check()
    assert told.kinds == ["reasoning", "message", "reasoning", "message"]
    assert [parts(i) for i in told.items] == [
        [("reasoning_text", "a")], [("output_text", "b")], [("reasoning_text", "c")], [("output_text", "d")],
    ]  # fmt: skip


def test_text_after_a_call_is_a_new_message():
    """Text and calls of one answer are both kept, in order."""
    told = Told([TextDelta("a"), CallDelta(0, "our_tool", "{}"), TextDelta("b"), done()]).check()
    assert told.kinds == ["message", "function_call", "message"]


def test_a_refusal_is_a_part_of_the_message():
    """Beside text in one item, as parts of their own."""
    told = Told([TextDelta("a"), RefusalDelta("no"), done()]).check()
    assert parts(told.items[0]) == [("output_text", "a"), ("refusal", "no")]


def test_names_may_come_in_pieces():
    """A call opens once its name is whole."""
    pieces = [
        CallDelta(0, "our_"),
        CallDelta(0, "tool"),
        CallDelta(0, arguments='{"a"'),
        CallDelta(0, arguments=":1}"),
    ]
    told = Told([*pieces, done()]).check()
    assert (told.items[0]["name"], told.items[0]["arguments"]) == ("our_tool", '{"a":1}')


def test_a_call_without_arguments_is_opened_at_the_end():
    """Some models send none at all."""
    told = Told([CallDelta(0, "their_tool"), CallDelta(1, "our_tool"), done("tool_calls")]).check()
    assert [(i["name"], i["arguments"]) for i in told.items] == [("their_tool", ""), ("our_tool", "")]


def test_whose_a_call_is():
    """Ours carry the label, the effect and their place, and are told as `mcp_call`; the client's do not."""
    calling = Calling(label_of=OURS.label_of, effect_of=lambda name: "pure")
    told = Told(
        [CallDelta(0, "their_tool", "{}"), CallDelta(1, "our_tool", "{}"), done()], calling=calling
    ).check()
    theirs, ours = told.items
    assert "server_label" not in theirs
    assert (ours["server_label"], ours["effect"], ours["output_index"]) == ("antiphon", "pure", 1)
    added = [e["item"]["type"] for e in told.wire if e["type"] == "response.output_item.added"]
    assert added == ["function_call", "mcp_call"]
    assert theirs["id"].startswith("fc_")
    assert ours["id"].startswith("mcp_")


def test_a_clients_call_is_done_only_at_the_close():
    """Its end is told together with the whole answer, never before."""
    events = []
    answer = Answer(Narrator(events.append), STEM, calling=OURS)
    answer.feed(CallDelta(0, "their_tool", '{"a":1}'))
    answer.feed(TextDelta("more"))
    answer.feed(done("tool_calls"))
    assert not [e for e in events if e.type.endswith(("item.done", "arguments.done"))]
    answer.close()
    dones = [e.to_dict()["item"] for e in events if e.type == "response.output_item.done"]
    assert sorted(item["type"] for item in dones) == ["function_call", "message"]


def test_a_call_of_ours_stays_open_until_its_tool_has_ended():
    """`close` tells its arguments, not its end."""
    events = []
    answer = Answer(Narrator(events.append), STEM, calling=OURS)
    answer.feed(CallDelta(0, "our_tool", "{}"))
    answer.close()
    assert [e.type for e in events][-1] == "response.mcp_call_arguments.done"


@pytest.mark.parametrize(
    ("calling", "kept"),
    [
        ({"most": 0}, []),
        ({"most": 1}, ["our_tool"]),
        ({"allowed": frozenset({"our_other"})}, ["our_other"]),
        ({"allowed": frozenset({"our_other", "their_tool"}), "most": 1}, ["our_other"]),
        ({"allowed": frozenset()}, []),
    ],
)
def test_calls_that_are_not_allowed_are_dropped(calling, kept):
    """They take no place in the output and are named in `dropped`."""
    names = ["our_tool", "our_other", "their_tool"]
    pieces = [CallDelta(n, name, "{}") for n, name in enumerate(names)]
    pieces += [CallDelta(n, arguments=" ") for n in range(3)]
    told = Told([TextDelta("t"), *pieces, done()], calling=Calling(label_of=OURS.label_of, **calling)).check()
    assert [i["name"] for i in told.items[1:]] == kept
    assert told.answer.dropped == [name for name in names if name not in kept]


def test_nothing_said_is_no_item():
    """An empty answer, empty pieces, or a call without a name leave no trace."""
    assert Told([done()]).check().items == []
    assert Told([TextDelta(""), ReasoningDelta(""), RefusalDelta(""), done()]).check().items == []
    assert Told([CallDelta(0, "", '{"a":1}'), done()]).check().items == []


def test_what_a_payload_says_beside_its_items():
    """The finish reason, the usage and the model that answered."""
    payload = Told(
        [TextDelta("a"), done("tool_calls", usage=Usage(1, output_tokens=2, total_tokens=3), model="x")]
    ).payload
    assert payload["finish_reason"] == "tool_calls"
    assert payload["usage"]["output_tokens"] == 2
    assert payload["model"] == "x"
    assert Told([TextDelta("a"), done()]).payload["usage"] is None
    json.dumps(payload)


def test_ids_differ_by_attempt():
    """A second attempt at the same step uses no id of the first."""
    pieces = [TextDelta("a"), CallDelta(0, "our_tool", "{}"), done()]

    def ids(attempt):
        answer = Answer(Narrator(None), "0" * 24 + attempt, calling=OURS)
        for piece in pieces:
            answer.feed(piece)
        return {item["id"] for item in answer.close()["output"]}

    assert not ids("00") & ids("01")


def test_events_go_on_counting_where_a_run_stands():
    """Numbers and places continue; nobody is told twice."""
    events = []
    narrator = Narrator(events.append, sequence_number=40, output_index=7)
    answer = Answer(narrator, STEM, calling=OURS)
    answer.feed(TextDelta("a"))
    answer.close()
    assert [e.sequence_number for e in events] == list(range(40, 40 + len(events)))
    assert {e.to_dict()["output_index"] for e in events} == {7}


def test_each_event_is_one_line_whatever_is_in_it():
    """Line breaks of any kind in texts never break a frame."""
    nasty = 'a\nb\r\nc\u2028d\u2029e\x85f\tg"h\\i\x7f\U0001f600'
    told = Told([TextDelta(nasty), ReasoningDelta(nasty), CallDelta(0, "our_tool", nasty), done()]).check()
    for event in told.events:
        assert b"\n" not in event.data
        assert b"\r" not in event.data
        assert event.frame().count(b"\n") == 3
    assert parts(told.items[0]) == [("output_text", nasty)]
