"""What the demo proves, from the tools' ledger and the server's log, not from what it hopes.

Each check gives a sentence and None, or the complaint.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from antiphon.domain.events import TERMINAL_TYPES
from antiphon.testing.effect_ledger import EffectLedger
from antiphon.testing.stream_validator import check_stream

JSONObject = dict[str, Any]
Proof = tuple[str, str | None]


def check_reader(before: Sequence[JSONObject], after: Sequence[JSONObject]) -> Iterator[Proof]:
    """The one that was reading when the server died: `before` the kill and `after` coming back."""
    numbers = [event["sequence_number"] for event in (*before, *after)]
    rising = all(one < next_one for one, next_one in itertools.pairwise(numbers))
    yield (
        f"the reader came back behind event {numbers[len(before) - 1]}; numbers rose on to {numbers[-1]}",
        None if rising else f"they do not rise: {numbers}",
    )
    ids = {event["response"]["id"] for event in (*before, *after) if "response" in event}
    yield "it was the same response all along", None if len(ids) == 1 else f"there were {len(ids)}: {ids}"
    complaints = check_stream([*before, *after], resumed=True)
    yield "all it saw, before and after, is one valid stream", _first(complaints)


def check_log(replay: Sequence[JSONObject], response: JSONObject) -> Iterator[Proof]:
    """The log of a response, read from its first event, and the response as GET gives it."""
    yield f"the replay of {len(replay)} events from 0 is a valid stream", _first(check_stream(replay))
    ends = [event for event in replay if event["type"] in TERMINAL_TYPES]
    told = ends[-1]["response"] if ends else None
    yield (
        "its end tells exactly what GET answers",
        None if told == response else "the last event's response is another than GET's",
    )
    status = response["status"]
    yield "the response is completed", None if status == "completed" else f"it is {status}"


def check_kept(before: Sequence[JSONObject], replay: Sequence[JSONObject]) -> Iterator[Proof]:
    """What was told before the kill is in the log unchanged, but for the answer that was torn."""
    logged = {event["sequence_number"]: event for event in replay}
    changed = [
        event["sequence_number"] for event in before if logged.get(event["sequence_number"], event) != event
    ]
    yield "no number was used for two events", f"these were: {changed}" if changed else None
    done = [event for event in before if event["type"] == "response.output_item.done"]
    lost = [event["item"]["id"] for event in done if event["sequence_number"] not in logged]
    yield f"all {len(done)} items that had ended before the kill are kept", f"lost: {lost}" if lost else None


def check_follow_up(response: JSONObject) -> Iterator[Proof]:
    """The rehearsal model counts the turns that it was sent: a lost history makes this turn the first."""
    said = "".join(part["text"] for item in response["output"] for part in item.get("content", ()))
    yield "the model was sent the turn before it too", None if "turn 2" in said else f"it said: {said}"


def check_effects(
    ledger: EffectLedger, asked: Sequence[tuple[str, JSONObject]], replayed: Sequence[Sequence[JSONObject]]
) -> Iterator[Proof]:
    """What the tools did, by their own account, against what was asked for and what the log says."""
    calls = ledger.calls()
    done = [(call.tool, call.arguments) for call in calls]
    missing = [call for call in asked if call not in done]
    yield (
        f"the tools' own ledger has each of the {len(asked)} calls that were asked for",
        f"not in it: {missing}" if missing else None,
    )
    doubled = ledger.doubled_keys() or ledger.doubled_effects()
    yield (
        f"it has {len(calls)} calls in all, each with a key of its own: nothing was done twice",
        f"done more than once: {doubled}" if doubled else None,
    )
    items = [
        event["item"]
        for replay in replayed
        for event in replay
        if event["type"] == "response.output_item.done" and event["item"]["type"] == "mcp_call"
    ]
    failed = [item["name"] for item in items if item["error"] is not None or not item["output"]]
    agree = sorted(item["name"] for item in items) == sorted(call.tool for call in calls)
    yield (
        "the log holds the result of each of them: nothing was lost",
        None if agree and not failed else f"it has {len(items)} calls, {len(failed)} without a result",
    )


def _first(complaints: Sequence[str]) -> str | None:
    if not complaints:
        return None
    more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
    return f"{complaints[0]}{more}"
