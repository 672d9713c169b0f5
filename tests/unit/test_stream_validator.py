"""The judge of streams accepts what is right and finds each single defect in what is not."""

import copy

import pytest

from antiphon.testing import StreamValidator, check_response, check_stream, fold
from made_streams import GOOD, RESPONSE, USAGE, Told, text_stream, torn_and_struck


class Edited:
    """A good stream, to be spoilt in one place."""

    def __init__(self, name):
        self.events = GOOD[name]()

    def at(self, kind, nth=0):
        """The position of the nth event of a type."""
        return [i for i, event in enumerate(self.events) if event["type"] == kind][nth]

    def event(self, kind, nth=0):
        return self.events[self.at(kind, nth)]

    def drop(self, kind, nth=0):
        del self.events[self.at(kind, nth)]
        return self.renumbered()

    def insert(self, position, event):
        self.events.insert(position, copy.deepcopy(event))
        return self.renumbered()

    def swap(self, first, second):
        self.events[first], self.events[second] = self.events[second], self.events[first]
        return self.renumbered()

    def renumbered(self):
        for number, event in enumerate(self.events):
            event["sequence_number"] = number
        return self

    def set(self, kind, path, value, nth=0):
        """Set a value by its path in the nth event of a type; `...` removes the key."""
        target = self.event(kind, nth)
        for step in path[:-1]:
            target = target[step]
        if value is ...:
            del target[path[-1]]
        else:
            target[path[-1]] = value
        return self


ADDED = "response.output_item.added"
DONE = "response.output_item.done"
PART_ADDED = "response.content_part.added"
PART_DONE = "response.content_part.done"
DELTA = "response.output_text.delta"
TEXT_DONE = "response.output_text.done"
CALL_DELTA = "response.function_call_arguments.delta"
CALL_DONE = "response.function_call_arguments.done"
COMPLETED = "response.completed"
PROGRESS = "response.in_progress"


def edit(name):
    return Edited(name)


def spoilt_both(edited, path, value, done_nth=0, place=0):
    """Change the ended item and the terminal output alike: only what was told before disagrees."""
    edited.set(DONE, ("item", *path), value, done_nth)
    return edited.set(COMPLETED, ("response", "output", place, *path), value)


def reasoning_still_open():
    """The message opens before the reasoning item is done."""
    edited = edit("reasoning")
    return edited.swap(edited.at(DONE), edited.at(ADDED, 1))


def strike_that_reuses_an_id():
    told = Told().begin()
    told.opened_text("msg_1", "output_text", "Torn text")
    return told.strike().text("msg_1", "A second attempt").end()


def strike_that_goes_on_with_a_forgotten_item():
    told = Told().begin()
    item, place, part = told.opened_text("msg_1", "output_text", "Torn text")
    told.strike()
    told.say(TEXT_DONE, **place, text="Torn text", logprobs=[])
    told.say(PART_DONE, **place, part=part)
    told.close(place["output_index"], {**item, "status": "completed", "content": [part]})
    return told.end()


def strike_that_skips_an_index():
    told = Told().begin()
    told.opened_text("msg_1", "output_text", "Torn text")
    told.strike()
    told.index = 1
    return told.text("msg_2", "A second attempt").end()


def strike_that_changes_what_was_done():
    told = Told().begin()
    (opened,) = told.opened_mcp("x")
    told.close_mcp(opened)
    told.output[0] = {**told.output[0], "output": "another"}
    return told.strike().text("msg_2", "A second attempt").end()


def strike_that_loses_what_was_done():
    told = Told().begin()
    (opened,) = told.opened_mcp("x")
    told.close_mcp(opened)
    del told.output[0]
    return told.strike().text("msg_2", "A second attempt").end()


def strike_that_makes_up_an_item():
    told = Told().begin()
    told.output[0] = {**mcp_item(), "status": "completed", "output": "ok"}
    return told.strike().text("msg_2", "A second attempt").end()


def mcp_item():
    return GOOD["mcp"]()[-1]["response"]["output"][1]


def two_text_parts_open():
    told = Told().begin()
    _, place, part = told.opened_text("msg_1", "output_text", "One text")
    told.say(PART_ADDED, **{**place, "content_index": 1}, part={**part, "text": ""})
    return told.events


def mcp_call_without_progress():
    edited = edit("mcp").drop("response.mcp_call.in_progress", 2)
    return edited.drop("response.mcp_call.in_progress", 1)


DEFECTS = {
    # order
    "created is missing": (lambda: edit("text").drop("response.created"), "created must be the first"),
    "created twice": (lambda: edit("text").insert(0, edit("text").events[0]), "created must be the first"),
    "in_progress is missing": (lambda: edit("text").drop(PROGRESS), "before response.in_progress"),
    "in_progress twice": (
        lambda: edit("text").insert(1, edit("text").events[1]),
        "a second response.in_progress",
    ),
    "queued after in_progress": (lambda: edit("reasoning").swap(1, 2), "directly follow"),
    "queued is missing": (lambda: edit("reasoning").drop("response.queued"), "queued is missing"),
    "output before in_progress": (lambda: edit("text").swap(1, 2), "before response.in_progress"),
    "no terminal event": (lambda: edit("text").drop(COMPLETED), "without a terminal event"),
    "two terminal events": (
        lambda: edit("text").insert(99, edit("text").events[-1]),
        "after the terminal one",
    ),
    "an event after the end": (
        lambda: edit("text").insert(99, edit("text").events[1]),
        "after the terminal one",
    ),
    "an unknown event type": (
        lambda: edit("text").set(DELTA, ("type",), "response.text.delta"),
        "type is unknown",
    ),
    "no type": (lambda: edit("text").set(DELTA, ("type",), ...), "event.type is missing"),
    # sequence numbers
    "a number repeats": (lambda: edit("text").set(DELTA, ("sequence_number",), 3), "does not rise"),
    "a number jumps": (lambda: edit("text").set(COMPLETED, ("sequence_number",), 50), "the number jumps"),
    "numbers begin at 1": (
        lambda: [{**event, "sequence_number": i + 1} for i, event in enumerate(text_stream())],
        "the number jumps",
    ),
    "a number is missing": (
        lambda: edit("text").set(DELTA, ("sequence_number",), ...),
        "sequence_number is missing",
    ),
    # items
    "an item is never added": (lambda: edit("text").drop(ADDED), "was never added"),
    "an item is never done": (lambda: edit("text").drop(DONE), "still open: msg_1"),
    "an item is added twice": (lambda: edit("text").insert(3, edit("text").event(ADDED)), "was used before"),
    "an item is done twice": (
        lambda: edit("text").insert(9, edit("text").event(DONE)),
        "was done before",
    ),
    "output_index does not begin at 0": (
        lambda: edit("text").set(ADDED, ("output_index",), 1),
        "the next one is 0",
    ),
    "output_index repeats": (lambda: edit("calls").set(ADDED, ("output_index",), 0, 1), "the next one is 1"),
    "output_index differs": (lambda: edit("calls").set(CALL_DELTA, ("output_index",), 2), "was added at 1"),
    "output_index is missing": (
        lambda: edit("text").set(DELTA, ("output_index",), ...),
        "output_index is missing",
    ),
    "an id changes in a delta": (lambda: edit("text").set(DELTA, ("item_id",), "msg_2"), "never added"),
    "an id changes when done": (lambda: spoilt_both(edit("text"), ("id",), "msg_2"), "never added"),
    "an id changes in the end": (
        lambda: edit("text").set(COMPLETED, ("response", "output", 0, "id"), "msg_2"),
        "msg_1 is not in the output",
    ),
    "a key is missing when added": (
        lambda: edit("calls").set(ADDED, ("item", "arguments"), ..., 1),
        "is missing",
    ),
    "a status is missing when added": (
        lambda: edit("text").set(ADDED, ("item", "status"), ...),
        "status is missing",
    ),
    "added with text": (
        lambda: edit("text").set(
            ADDED, ("item", "content"), [{"type": "output_text", "text": "", "annotations": []}]
        ),
        "when it opens",
    ),
    "added as completed": (lambda: edit("text").set(ADDED, ("item", "status"), "completed"), "when it opens"),
    "added with arguments": (
        lambda: edit("calls").set(ADDED, ("item", "arguments"), "{}", 1),
        "when it opens",
    ),
    "done while in progress": (
        lambda: spoilt_both(edit("text"), ("status",), "in_progress"),
        "its status is 'in_progress'",
    ),
    "an unknown item type": (
        lambda: edit("text").set(ADDED, ("item", "type"), "thought"),
        "unknown type 'thought'",
    ),
    "the reasoning is still open": (reasoning_still_open, "opens while the reasoning rs_1 is open"),
    # content
    "no content_part.added": (lambda: edit("text").drop(PART_ADDED), "part that is not open"),
    "no content_part.done": (lambda: edit("text").drop(PART_DONE), "a part of its content is open"),
    "no text.done": (lambda: edit("text").drop(TEXT_DONE), "done before its text"),
    "a delta after text.done": (
        lambda: edit("text").swap(edit("text").at(DELTA, 1), edit("text").at(TEXT_DONE)),
        "after the text was done",
    ),
    "content_index is missing": (
        lambda: edit("text").set(DELTA, ("content_index",), ...),
        "content_index is missing",
    ),
    "content_index is wrong": (
        lambda: edit("text").set(PART_ADDED, ("content_index",), 1),
        "content_index is 1",
    ),
    "a delta for another part": (lambda: edit("text").set(DELTA, ("content_index",), 1), "that is not open"),
    "logprobs is missing in a delta": (
        lambda: edit("text").set(DELTA, ("logprobs",), ...),
        "logprobs is missing",
    ),
    "logprobs is missing when done": (
        lambda: edit("text").set(TEXT_DONE, ("logprobs",), ...),
        "logprobs is missing",
    ),
    "logprobs is null in a part": (
        lambda: edit("text").set(PART_DONE, ("part", "logprobs"), None),
        "left out rather than null",
    ),
    "a part opens with text": (
        lambda: edit("text").set(PART_ADDED, ("part", "text"), "Hel"),
        "opens with text",
    ),
    "annotations are missing": (
        lambda: edit("text").set(PART_ADDED, ("part", "annotations"), ...),
        "annotations is missing",
    ),
    "a delta is lost": (lambda: edit("text").drop(DELTA), "the deltas make 'lo there'"),
    "a delta is doubled": (
        lambda: edit("text").insert(5, edit("text").event(DELTA)),
        "the deltas make 'HelHello",
    ),
    "all deltas are lost": (lambda: edit("text").drop(DELTA).drop(DELTA), "the deltas make ''"),
    "the text differs": (lambda: edit("text").set(TEXT_DONE, ("text",), "Hello"), "the deltas make"),
    "the part differs": (
        lambda: edit("text").set(PART_DONE, ("part", "text"), "Hello"),
        "the part's text is",
    ),
    "the item differs from its parts": (
        lambda: spoilt_both(edit("text"), ("content", 0, "text"), "Hello"),
        "is not the part that was told",
    ),
    "the item has no parts": (
        lambda: spoilt_both(edit("text"), ("content",), []),
        "0 part(s) of content, 1 were",
    ),
    "the output differs from the item": (
        lambda: edit("text").set(COMPLETED, ("response", "output", 0, "content", 0, "text"), "Hello"),
        "output[0] is not what was told",
    ),
    "two parts are open": (two_text_parts_open, "a part opens while another is open"),
    "a refusal delta for a text": (
        lambda: edit("text").set(DELTA, ("type",), "response.refusal.delta"),
        "a delta of refusal for a part of type output_text",
    ),
    "reasoning text on a message": (
        lambda: edit("text").set(DELTA, ("type",), "response.reasoning_text.delta"),
        "is a message",
    ),
    "the summary differs": (
        lambda: edit("summary").set("response.reasoning_summary_text.done", ("text",), "Thought"),
        "the deltas make",
    ),
    "summary_index is missing": (
        lambda: edit("summary").set("response.reasoning_summary_text.delta", ("summary_index",), ...),
        "summary_index is missing",
    ),
    # calls
    "arguments go to the wrong call": (
        lambda: edit("calls").set(CALL_DELTA, ("item_id",), "fc_b").set(CALL_DELTA, ("output_index",), 2),
        "the deltas make",
    ),
    "arguments are done with another name": (
        lambda: edit("calls").set(CALL_DONE, ("name",), "b"),
        "the name is 'b'",
    ),
    "no arguments.done": (lambda: edit("calls").drop(CALL_DONE), "done before its arguments"),
    "the item's arguments differ": (
        lambda: spoilt_both(edit("calls"), ("arguments",), "{}", 1, 1),
        "item.arguments is '{}'",
    ),
    "a call changes its name": (lambda: spoilt_both(edit("calls"), ("name",), "c", 1, 1), "item.name is 'c'"),
    "a call_id is shared": (
        lambda: edit("calls").set(ADDED, ("item", "call_id"), "call_a", 2),
        "call_id call_a was",
    ),
    "a call has no call_id": (
        lambda: edit("calls").set(ADDED, ("item", "call_id"), "", 1),
        "call_id is empty",
    ),
    "an mcp_call never ends": (
        lambda: edit("mcp").drop("response.mcp_call.completed"),
        "completed did not come",
    ),
    "an mcp_call ends otherwise": (
        lambda: edit("mcp").set("response.mcp_call.completed", ("type",), "response.mcp_call.failed"),
        "response.mcp_call.completed did not come",
    ),
    "an mcp_call ends before its arguments": (
        lambda: edit("mcp").drop("response.mcp_call_arguments.done"),
        "before the arguments were done",
    ),
    "an mcp_call without in_progress": (mcp_call_without_progress, "before response.mcp_call.in_progress"),
    "an mcp_call goes on after its end": (
        lambda: edit("mcp").set("response.mcp_call.in_progress", ("item_id",), "mcp_y", 2).swap(10, 11),
        "was added at",
    ),
    "an mcp_call's error is a string": (
        lambda: edit("mcp").set(DONE, ("item", "error"), "boom", 1),
        "item.error is of type str",
    ),
    "an mcp_call fails without an error": (
        lambda: edit("mcp").set(DONE, ("item", "error"), None, 1),
        "without an err",
    ),
    # the response
    "the id changes": (lambda: edit("text").set(COMPLETED, ("response", "id"), "resp_2"), "it was 'resp_1'"),
    "created_at changes": (
        lambda: edit("text").set(COMPLETED, ("response", "created_at"), 7),
        "created_at is 7",
    ),
    "created with output": (
        lambda: edit("text").set("response.created", ("response", "output"), [mcp_item()]),
        "has output before it runs",
    ),
    "the terminal status is wrong": (
        lambda: edit("incomplete").set("response.incomplete", ("type",), COMPLETED),
        "status is 'incomplete'",
    ),
    "created as completed": (
        lambda: edit("text").set("response.created", ("response", "status"), "completed"),
        "status is 'completed'",
    ),
    "the output lacks an item": (
        lambda: edit("calls").set(
            COMPLETED, ("response", "output"), edit("calls").events[-1]["response"]["output"][:2]
        ),
        "2 ended items, 3 were told",
    ),
    "the output has one more": (
        lambda: edit("text").set(
            COMPLETED, ("response", "output"), [*edit("text").events[-1]["response"]["output"], mcp_item()]
        ),
        "2 ended items, 1 were told",
    ),
    "the output is in another order": (
        lambda: edit("calls").set(
            COMPLETED, ("response", "output"), edit("calls").events[-1]["response"]["output"][::-1]
        ),
        "output[2] was told at output_index 0",
    ),
    "an open item in a completed response": (
        lambda: edit("text").drop(DONE).set(COMPLETED, ("response", "output"), []),
        "still open",
    ),
    "the cut item is not marked": (
        lambda: (
            edit("incomplete")
            .set(DONE, ("item", "status"), "completed")
            .set("response.incomplete", ("response", "output", 0, "status"), "completed")
        ),
        "its last item is not incomplete",
    ),
    "a key of the response is missing": (
        lambda: edit("text").set(COMPLETED, ("response", "prompt_cache_key"), ...),
        "prompt_cache_key is missing",
    ),
    # errors
    "failed without an error event": (lambda: edit("failed").drop("error"), "no error event came before"),
    "an error, then completed": (
        lambda: edit("text").insert(-1, edit("failed").event("error")),
        "only response.failed may follow",
    ),
    "an error, then cancelled": (
        lambda: edit("cancelled").insert(-1, edit("failed").event("error")),
        "cancelled after an error event",
    ),
    "two errors": (
        lambda: edit("failed").insert(-1, edit("failed").event("error")),
        "only response.failed may follow",
    ),
    "an error without the flat form": (
        lambda: edit("failed").set("error", ("message",), ...),
        "message is missing",
    ),
    "an error without the nested form": (lambda: edit("failed").set("error", ("error",), ...), "nested form"),
    "an error whose forms differ": (
        lambda: edit("failed").set("error", ("error", "message"), "other"),
        "'other' nested and 'gone' flat",
    ),
    "an error without type": (
        lambda: edit("failed").set("error", ("error", "type"), ...),
        "error.type is missing",
    ),
    "an error of another code": (lambda: edit("failed").set("error", ("code",), "x"), "it was 'x'"),
    # struck attempts
    "a struck id is used again": (strike_that_reuses_an_id, "the id msg_1 was used before"),
    "a struck item goes on": (strike_that_goes_on_with_a_forgotten_item, "was never added"),
    "a struck output_index is not used again": (strike_that_skips_an_index, "the next one is 0"),
    "a strike changes what was done": (strike_that_changes_what_was_done, "is not what was told as done"),
    "a strike loses what was done": (strike_that_loses_what_was_done, "is not in the output any more"),
    "a strike makes up an item": (strike_that_makes_up_an_item, "output[0] was never told"),
    "torn events are in a replay": (torn_and_struck, "a second response.in_progress"),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_streams_are_accepted(name):
    """A stream that keeps the rules has no violations, however unusual it is."""
    assert check_stream(GOOD[name]()) == []


@pytest.mark.parametrize("name", GOOD)
def test_replays_from_every_cursor_are_accepted(name):
    """A good stream may be joined after any of its events."""
    events = GOOD[name]()
    for at, event in enumerate(events[:-1]):
        assert check_stream(events[at + 1 :], starting_after=event["sequence_number"]) == []


@pytest.mark.parametrize("name", GOOD)
def test_prefixes_are_accepted_as_such(name):
    """What a reader saw until it was cut off is no violation, unless a whole stream was asked for."""
    events = GOOD[name]()
    for end in range(1, len(events)):
        assert check_stream(events[:end], complete=False) == []
        assert check_stream(events[:end]) == ["the stream ended without a terminal event"]


@pytest.mark.parametrize("name", DEFECTS)
def test_each_single_defect_is_found(name):
    """One defect in a good stream is named in words."""
    make, words = DEFECTS[name]
    made = make()
    violations = check_stream(made.events if isinstance(made, Edited) else made)
    assert any(words in violation for violation in violations), violations


# Streams in which nothing happens side by side: each event has its one place.
SINGLE_FILE = ["text", "reasoning", "summary", "incomplete"]


@pytest.mark.parametrize("name", SINGLE_FILE)
def test_every_event_counts(name):
    """No event can be left out, told twice or told too early, even when the numbers fit."""
    for at in range(len(GOOD[name]())):
        left_out, doubled, early = edit(name), edit(name), edit(name)
        del left_out.events[at]
        doubled.insert(at, doubled.events[at])
        early.swap(at - 1, at)
        for spoilt in (left_out, doubled, early):
            assert check_stream(spoilt.renumbered().events) != [], at


def leaves(value, path=()):
    """Every place in a JSON value that holds no other."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, (*path, key))
    else:
        yield path


# What nothing else in the stream tells a second time.
TOLD_ONCE = {"completed_at", "cached_tokens", "cache_write_tokens", "reasoning_tokens", "reason"}


@pytest.mark.parametrize("name", SINGLE_FILE)
def test_every_value_counts(name):
    """Any value of any event, replaced by one of another type or another value, is found; nothing crashes."""
    events = GOOD[name]()
    for at, event in enumerate(events):
        for path in leaves(event):
            for value in ("another", 5, None, [], {}, [5], {"a": None}):
                spoilt = copy.deepcopy(events)
                target = spoilt[at]
                for step in path[:-1]:
                    target = target[step]
                if target[path[-1]] == value:
                    continue
                target[path[-1]] = value
                told_once = path[-1] in TOLD_ONCE and isinstance(value, str | int)
                assert check_stream(spoilt) or told_once, (at, path, value)


@pytest.mark.parametrize("name", GOOD)
def test_no_event_can_crash_the_judge(name):
    """Whatever stands in an event, the answer is a list of violations."""
    events = GOOD[name]()
    for at, event in enumerate(events):
        for key in event:
            for value in ("another", 5, None, [], {}, [5], {"a": None}):
                spoilt = [*events[:at], {**event, key: value}, *events[at + 1 :]]
                assert isinstance(check_stream(spoilt), list)


def test_the_defects_are_many():
    """The list of defects does not shrink unseen."""
    assert len(DEFECTS) >= 100


def test_what_a_reader_saw_over_reconnections():
    """Torn events that were seen live are taken back by the reset that follows them."""
    assert check_stream(torn_and_struck(), resumed=True) == []


def test_a_replay_must_begin_after_its_cursor():
    """An event at or before the cursor, or a hole after it, is found."""
    events = text_stream()
    assert any("does not rise" in violation for violation in check_stream(events[5:], starting_after=7))
    assert any("jumps" in violation for violation in check_stream(events[5:], starting_after=3))


def test_a_replay_is_still_judged():
    """What began before the cursor must end with what was seen of it, and all that is new is strict."""
    edited = edit("calls")
    cursor = edited.at(DELTA, 0)
    edited.event(TEXT_DONE)["text"] = "something else"
    violations = check_stream(edited.events[cursor + 1 :], starting_after=cursor)
    assert any("the deltas make" in violation for violation in violations)
    edited = edit("calls")
    edited.set(ADDED, ("output_index",), 0, 2)
    violations = check_stream(edited.events[cursor + 1 :], starting_after=cursor)
    assert any("the next one is" in violation for violation in violations)


def test_texts_without_deltas_where_allowed():
    """A model that does not stream gives its texts whole; half of a text is still a defect."""
    edited = edit("text").drop(DELTA).drop(DELTA)
    assert check_stream(edited.events, deltas_optional=True) == []
    assert check_stream(edit("text").drop(DELTA).events, deltas_optional=True) != []


def test_feeding_says_what_is_wrong_with_each_event():
    """Violations are given at the event that has them, labelled with it."""
    validator = StreamValidator()
    found = [validator.feed(event) for event in edit("text").drop(DELTA).events]
    assert [index for index, each in enumerate(found) if each] == [5]
    assert found[5][0].startswith("#5 response.output_text.done: ")


@pytest.mark.parametrize("name", GOOD)
def test_the_fold_is_the_final_response(name):
    """The events alone amount to the output that the terminal event carries."""
    events = GOOD[name]()
    folded = fold(events)
    output = events[-1]["response"]["output"]
    assert [item for item in folded["output"] if item.get("status") != "in_progress"] == output
    assert folded["status"] == events[-1]["response"]["status"]


def test_the_fold_keeps_half_an_item():
    """An item that never ended is there as far as it was told."""
    told = Told().begin()
    told.opened_text("msg_1", "output_text", "Half an ans")
    (item,) = fold(told.events)["output"]
    assert item["content"][0]["text"] == "Half an ans"


def response(**changes):
    ended = {"status": "completed", "completed_at": 101, "usage": USAGE}
    return copy.deepcopy({**RESPONSE, **ended, **changes})


def test_good_responses():
    """Objects of every status pass, with keys of our own beside the schema's."""
    for name in GOOD:
        for event in GOOD[name]():
            if "response" in event:
                assert check_response(event["response"]) == []
    assert check_response(response(interruptions=[], warnings=["x"])) == []


@pytest.mark.parametrize("key", [key for key in RESPONSE if key != "reasoning"])
def test_every_key_of_a_response_is_asked_for(key):
    """No key may be left out, and null only stands where it may."""
    broken = response()
    del broken[key]
    assert check_response(broken) == [f"response.{key} is missing"]
    nullable = {
        "completed_at",
        "error",
        "incomplete_details",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "previous_response_id",
        "prompt_cache_key",
        "reasoning",
        "safety_identifier",
        "usage",
    }
    if key not in nullable:
        assert check_response(response(**{key: None})) == [f"response.{key} is null"]


MESSAGE = text_stream()[-1]["response"]["output"][0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"created_at": 1.5}, "created_at is of type float"),
        ({"created_at": True}, "created_at is of type bool"),
        ({"object": "realtime"}, "object is"),
        ({"status": "done"}, "status is 'done'"),
        ({"completed_at": None}, "completed_at is null"),
        ({"completed_at": 99}, "completed_at is before"),
        ({"text": {"format": None}}, "text.format"),
        ({"text": {"format": {"type": "text"}, "verbosity": None}}, "verbosity is null"),
        ({"reasoning": {"effort": "low"}}, "reasoning.summary is missing"),
        ({"metadata": {"a": 1}}, "not a string"),
        ({"truncation": "maybe"}, "truncation is"),
        ({"error": {"code": "x", "message": "y"}}, "error is set while completed"),
        ({"status": "failed"}, "error is null in a failed"),
        ({"status": "failed", "error": {"code": "x"}}, "error.message is missing"),
        ({"status": "incomplete"}, "incomplete_details is null"),
        ({"incomplete_details": {"reason": "x"}}, "incomplete_details is set"),
        ({"usage": {**USAGE, "total_tokens": 1}}, "not the sum"),
        ({"usage": {**USAGE, "input_tokens_details": {"cached_tokens": 0}}}, "cache_write_tokens is missing"),
        ({"usage": {k: v for k, v in USAGE.items() if k != "output_tokens_details"}}, "details is missing"),
        ({"output": [MESSAGE, MESSAGE]}, "share an id"),
        (
            {"output": [{**MESSAGE, "status": "in_progress"}]},
            "is in_progress in a response that is completed",
        ),
        ({"output": [{**MESSAGE, "status": "incomplete"}]}, "is incomplete in a completed response"),
        ({"output": [{**MESSAGE, "role": "user"}]}, "role is 'user'"),
        ({"output": [{**MESSAGE, "phase": None}]}, "phase is null"),
        (
            {"output": [{"type": "reasoning", "id": "rs_1", "summary": [], "content": None}]},
            "content is null",
        ),
        (
            {"output": [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None}]},
            "encrypted_content is null",
        ),
        ({"output": [{**MESSAGE, "content": [{"type": "text", "text": "x"}]}]}, "is of type 'text'"),
        ({"output": [{"type": "thought", "id": "t"}]}, "unknown type 'thought'"),
        ({"output": ["text"]}, "is not an object"),
        ({"tools": [{}]}, "has no type"),
    ],
)
def test_each_defect_of_a_response(changes, words):
    """One wrong value is named."""
    violations = check_response(response(**changes))
    assert any(words in violation for violation in violations), violations


def test_an_incomplete_item_stands_last():
    """Only the cut item is incomplete, and nothing comes after it."""
    cut, after = {**MESSAGE, "status": "incomplete"}, {**MESSAGE, "id": "msg_2"}
    changes = {
        "status": "incomplete",
        "completed_at": None,
        "incomplete_details": {"reason": "max_iterations"},
    }
    assert check_response(response(**changes, output=[after, cut])) == []
    assert check_response(response(**changes, output=[cut, after])) == [
        "output[0] is incomplete and is not the last item"
    ]
