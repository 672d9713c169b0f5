"""What must hold of a response's events: the log, its replays, and what readers saw. See `history`."""

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from itertools import pairwise
from typing import Any

from antiphon.domain.events import TERMINAL_TYPES
from antiphon.domain.steps import StepKind, StepState
from antiphon.testing.evidence import ResponseHistory
from antiphon.testing.folding import fold
from antiphon.testing.recording_client import Connection
from antiphon.testing.response_rules import check_response
from antiphon.testing.snapshots import RunRecord
from antiphon.testing.stream_validator import check_stream

JSONObject = dict[str, Any]


def check(history: ResponseHistory) -> Iterator[str]:
    """Everything that is wrong with the events."""
    written: dict[int, JSONObject] = {}
    yield from _check_log_keeps(history.records, written)
    yield from _check_replays(history)
    yield from _check_outcome(history)
    for connections in history.readers:
        yield from _check_reader(connections, written, history)


def _check_log_keeps(records: Sequence[RunRecord], written: dict[int, JSONObject]) -> Iterator[str]:
    """A number stands for one event for ever; what goes was a torn attempt's. Fills in what was written."""
    highest = -1
    for record in records:
        if record.next_sequence_number <= max(record.log, default=-1):
            yield f"the next number is {record.next_sequence_number}, the log reaches {max(record.log)}"
        for number, entry in record.log.items():
            if number not in written and number < highest:
                yield f"event {number} was written after the number {highest - 1} had been given away"
            if written.setdefault(number, entry.event) != entry.event:
                yield f"the number {number} was used for two events"
        if record.next_sequence_number < highest:
            yield f"the next number fell from {highest} to {record.next_sequence_number}"
        highest = max(highest, record.next_sequence_number)
    for before, after in pairwise(records):
        torn = {step.id for step in before.steps if step.kind is StepKind.MODEL_CALL}
        torn -= {step.id for step in before.steps if step.state is StepState.COMPLETED}
        for number in before.log.keys() - after.log.keys():
            if before.log[number].step_id not in torn:
                yield f"event {number} left the log and was not of a torn attempt"


def _check_replays(history: ResponseHistory) -> Iterator[str]:
    unlogged = history.final.mode == "foreground"
    for cursor, events in history.replays.items():
        after = None if cursor < 0 else cursor
        for complaint in check_stream(events, starting_after=after, deltas_optional=unlogged):
            yield f"the replay after {cursor}: {complaint}"
        if events != [event for event in history.replay if event["sequence_number"] > cursor]:
            yield f"the replay after {cursor} is not the end of the whole one"
    if unlogged:
        return  # its events are made when they are asked for
    if history.replay != [history.final.log[number].event for number in sorted(history.final.log)]:
        yield "the replay is not what the log holds"


def _check_outcome(history: ResponseHistory) -> Iterator[str]:
    for complaint in check_response(history.body):
        yield f"GET: {complaint}"
    ends = [event for event in history.replay if event["type"] in TERMINAL_TYPES]
    if len(ends) != 1 or history.replay[-1] != ends[-1]:
        yield f"the log has {len(ends)} terminal events, and ends with {history.replay[-1]['type']}"
        return
    if ends[0]["response"] != history.body:
        yield "the terminal event's response is not what GET gives"
    if history.status == "completed" and fold(history.replay)["output"] != history.body["output"]:
        yield "the fold of the events is not the output"


def _check_reader(
    connections: Sequence[Connection], written: dict[int, JSONObject], history: ResponseHistory
) -> Iterator[str]:
    seen = [event for connection in connections for event in connection.events]
    numbers = [event["sequence_number"] for event in seen]
    if any(after <= before for before, after in pairwise(numbers)):
        yield f"a reader's numbers do not rise: {numbers}"
    for event in seen:
        if written.get(event["sequence_number"]) != event:
            yield f"a reader was told event {event['sequence_number']}, which was never written"
    for place, connection in enumerate(connections):
        if connection.status not in {None, HTTPStatus.OK}:
            yield f"connection {place} was answered {connection.status}"
        for complaint in check_stream(
            connection.events, starting_after=connection.starting_after, complete=False
        ):
            yield f"connection {place} (after {connection.starting_after}): {complaint}"
    for complaint in check_stream(seen, resumed=True):
        yield f"all that a reader saw: {complaint}"
    yield from _check_gaps(numbers, history)


def _check_gaps(numbers: Sequence[int], history: ResponseHistory) -> Iterator[str]:
    """Whoever read along to the end saw every event that is left in the log."""
    if numbers:
        missed = [n for n in history.final.log if n > numbers[0] and n not in set(numbers)]
        if missed:
            yield f"a reader was never told the events {missed}"
