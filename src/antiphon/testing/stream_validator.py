"""The judge of event streams: order, numbers, ids, and that all the tellings of one thing agree.

A shape can be right in every event and the stream still be wrong. This validator follows a stream the
way a strict client would, and says in words what is wrong, naming the event.

    violations = check_stream(events)                       # a whole stream, or a replay from 0
    violations = check_stream(events, starting_after=17)    # a replay from a cursor
    violations = check_stream(events, resumed=True)         # all that a client saw, over reconnections

A struck attempt: numbers may jump directly before a `response.in_progress`, which carries the whole
response as it stands; what is not in it is forgotten, its output indexes are used again, its ids never.
Someone who was connected while the attempt was torn has seen the torn events and no jump: `resumed`
allows that.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from antiphon.domain.events import TERMINAL_TYPES
from antiphon.testing.folding import Fold, fold
from antiphon.testing.item_state import ITEM_EVENTS, ItemState
from antiphon.testing.response_rules import RESPONSE_KEYS, Kinds, check_keys, check_response

__all__ = ["StreamValidator", "check_response", "check_stream", "fold"]

JSONObject: TypeAlias = dict[str, Any]

STATUSES_OF: dict[str, frozenset[str]] = {
    "response.created": frozenset({"queued", "in_progress"}),
    "response.queued": frozenset({"queued"}),
    "response.in_progress": frozenset({"in_progress"}),
    "response.completed": frozenset({"completed"}),
    "response.incomplete": frozenset({"incomplete"}),
    "response.failed": frozenset({"failed", "cancelled"}),
}

_EVENT_FIELDS: dict[str, Kinds] = {"type": (str,), "sequence_number": (int,)}
_ITEM_FIELDS: dict[str, Kinds] = {"item_id": (str,), "output_index": (int,)}
_WHOLE_ITEM_FIELDS: dict[str, Kinds] = {"output_index": (int,), "item": (dict,)}
_ERROR_FIELDS: dict[str, Kinds] = {"code": (str, None), "message": (str,), "param": (str, None)}
_CHANGING_KEYS = frozenset({"status", "completed_at", "incomplete_details", "error", "usage", "output"})
_CONSTANT_KEYS = tuple(key for key in RESPONSE_KEYS if key not in _CHANGING_KEYS)


def check_stream(
    events: Iterable[Mapping[str, Any]],
    *,
    starting_after: int | None = None,
    resumed: bool = False,
    deltas_optional: bool = False,
    complete: bool = True,
) -> list[str]:
    """Everything that is wrong with a stream. The options are those of `StreamValidator`.

    With `complete` false the stream may stop anywhere: it is what a reader saw until it was cut off.
    """
    validator = StreamValidator(
        starting_after=starting_after, resumed=resumed, deltas_optional=deltas_optional
    )
    for event in events:
        validator.feed(event)
    return validator.finish() if complete else validator.violations


class StreamValidator:
    """Feed it events one by one; `violations` are in the order of their discovery.

    `starting_after` is the cursor of a replay: the stream may begin in the middle. `resumed` allows a
    `response.in_progress` that takes back torn events which were seen. `deltas_optional` allows texts
    that are told whole, without deltas.
    """

    def __init__(
        self, *, starting_after: int | None = None, resumed: bool = False, deltas_optional: bool = False
    ) -> None:
        self.violations: list[str] = []
        self._cursor = -1 if starting_after is None else starting_after
        self._resumed = resumed
        self._deltas_optional = deltas_optional
        self._items: dict[str, ItemState] = {}
        self._used_ids: set[str] = set()
        self._next_index = 0
        self._midway = self._cursor >= 0
        self._prefix_known = not self._midway
        self._last: str | None = None
        self._jumped = False
        self._queued = False
        self._running = self._midway
        self._narrated = False
        self._error: JSONObject | None = None
        self._terminal = False
        self._constants: JSONObject = {}
        self._fold = Fold()

    def feed(self, event: Mapping[str, Any]) -> list[str]:
        """Take one event; gives what is wrong with it."""
        label = f"#{event.get('sequence_number')} {event.get('type')}"
        found = [f"{label}: {complaint}" for complaint in self._take(event)]
        self.violations.extend(found)
        if not self.violations:
            self._fold.feed(event)
        return found

    def finish(self) -> list[str]:
        """The stream has ended: gives all violations, with a missing terminal event among them."""
        if not self._terminal:
            self.violations.append("the stream ended without a terminal event")
        return self.violations

    def _take(self, event: Mapping[str, Any]) -> Iterator[str]:
        wrong = list(check_keys(event, _EVENT_FIELDS, "event"))
        yield from wrong
        if wrong:
            return
        kind = event["type"]
        yield from self._check_place(kind, event["sequence_number"])
        if kind in STATUSES_OF:
            yield from self._take_response(kind, event)
        elif kind == "error":
            yield from self._take_error(event)
        elif kind == "response.output_item.added":
            yield from self._take_added(event)
        elif kind == "response.output_item.done":
            yield from self._take_done(event)
        elif kind in ITEM_EVENTS:
            yield from self._take_item_event(kind, event)
        else:
            yield "the event type is unknown"
        self._last = kind

    def _check_place(self, kind: str, number: int) -> Iterator[str]:
        """Sequence numbers, and what may come before what."""
        if number <= self._cursor:
            yield f"the number does not rise: {self._cursor} came before"
        elif number != self._cursor + 1 and kind != "response.in_progress":
            yield f"the number jumps from {self._cursor}"
        self._jumped = number > self._cursor + 1
        self._cursor = max(self._cursor, number)
        if self._terminal:
            yield "an event after the terminal one"
        if (self._last is None and not self._midway) != (kind == "response.created"):
            yield "response.created must be the first event, and only that"
        if self._queued and self._last == "response.created" and kind != "response.queued":
            yield "response.queued is missing: the response was created as queued"
        if self._error is not None and kind != "response.failed":
            yield "only response.failed may follow an error event"
        if kind not in STATUSES_OF and kind != "error" and not self._running:
            yield "it comes before response.in_progress"

    def _take_response(self, kind: str, event: Mapping[str, Any]) -> Iterator[str]:
        response = event.get("response")
        wrong = check_response(response)
        yield from wrong
        self._terminal = self._terminal or kind in TERMINAL_TYPES
        status = response.get("status") if isinstance(response, dict) else None
        if isinstance(status, str) and status not in STATUSES_OF[kind]:
            yield f"the response's status is {status!r}"
        if wrong or not isinstance(response, dict):
            self._running = self._running or kind == "response.in_progress"
            return
        for key in _CONSTANT_KEYS:
            known = self._constants.setdefault(key, response.get(key))
            if response.get(key) != known:
                yield f"response.{key} is {response.get(key)!r}, it was {known!r}"
        match kind:
            case "response.created":
                self._queued = status == "queued"
            case "response.queued":
                if self._last not in {"response.created", None}:
                    yield "it must directly follow response.created"
                self._queued = True
            case "response.in_progress":
                yield from self._take_progress(response)
            case _:
                yield from self._take_terminal(kind, response)
        if kind in {"response.created", "response.queued"} and response["output"]:
            yield "the response has output before it runs"

    def _take_progress(self, response: JSONObject) -> Iterator[str]:
        first = not self._running or (not self._prefix_known and not self._narrated)
        if first and self._prefix_known and response["output"]:
            yield "the response has output before anything was told of it"
        if not first and not self._jumped and not self._resumed:
            yield "a second response.in_progress, and no number was struck before it"
        self._running = self._narrated = True
        yield from self._reset(response["output"])

    def _reset(self, output: list[JSONObject]) -> Iterator[str]:
        """Go on from what the response carries; everything else is forgotten, except for its ids."""
        kept: dict[str, ItemState] = {}
        for index, item in enumerate(output):
            item_id = str(item.get("id"))
            state = self._items.get(item_id)
            if state is None:
                if self._prefix_known:
                    yield f"output[{index}] was never told"
                state = self._adopt(item_id, str(item.get("type")), index)
                state.closed = None if item.get("status") in {"in_progress", "calling"} else item
            elif state.index != index:
                yield f"output[{index}] was told at output_index {state.index}"
            elif state.closed is None and item.get("status") not in {"in_progress", "calling", None}:
                yield f"output[{index}] is {item['status']} and was never told as done"
            elif state.closed is not None and state.closed != item:
                yield f"output[{index}] is not what was told as done"
            kept[item_id] = state
        for state in self._items.values():
            if state.id not in kept and state.closed is not None and not self._resumed:
                yield f"the item {state.id} was done and is not in the output any more"
        self._items = kept
        self._next_index = len(output)
        self._prefix_known = True

    def _adopt(self, item_id: str, kind: str, index: int) -> ItemState:
        state = ItemState(item_id, kind, index, None, deltas_optional=self._deltas_optional)
        self._used_ids.add(item_id)
        self._items[item_id] = state
        self._next_index = max(self._next_index, index + 1)
        return state

    def _take_terminal(self, kind: str, response: JSONObject) -> Iterator[str]:
        if not self._running and not (self._queued and kind == "response.failed"):
            yield "it comes before response.in_progress"
        yield from self._check_end_error(kind, response)
        output = response["output"]
        may_stay_open = kind == "response.failed"
        open_ids = {state.id for state in self._items.values() if state.closed is None}
        if open_ids and not may_stay_open:
            yield f"still open: {', '.join(sorted(open_ids))}"
        told = [item for item in output if item["id"] not in open_ids]
        closed = sorted((s for s in self._items.values() if s.closed is not None), key=lambda s: s.index)
        if self._prefix_known and len(told) != len(closed):
            yield f"the output has {len(told)} ended items, {len(closed)} were told"
        by_id = {item["id"]: (index, item) for index, item in enumerate(output)}
        for state in closed:
            index, item = by_id.get(state.id, (-1, None))
            if item is None:
                yield f"the item {state.id} is not in the output"
            elif item != state.closed:
                yield f"output[{index}] is not what was told as done"
            elif index != state.index and not open_ids:
                yield f"output[{index}] was told at output_index {state.index}"
        yield from self._check_fold(output, open_ids)

    def _check_fold(self, output: list[JSONObject], open_ids: set[str]) -> Iterator[str]:
        if not self._prefix_known or self.violations:
            return  # a broken stream has no fold to speak of
        folded = [item for item in self._fold.response["output"] if item.get("id") not in open_ids]
        if folded != [item for item in output if item["id"] not in open_ids]:
            yield "the output is not the fold of the events"

    def _check_end_error(self, kind: str, response: JSONObject) -> Iterator[str]:
        if kind == "response.failed" and response["status"] == "failed":
            if self._error is None and self._last is not None:
                yield "no error event came before it"
            elif self._error is not None and self._error.get("code") != response["error"]["code"]:
                yield f"the error's code is {response['error']['code']!r}, it was {self._error.get('code')!r}"
        elif self._error is not None:
            yield f"the response is {response['status']} after an error event"

    def _take_error(self, event: Mapping[str, Any]) -> Iterator[str]:
        yield from check_keys(event, _ERROR_FIELDS, "event")
        nested = event.get("error")
        self._error = dict(event)
        if not isinstance(nested, dict):
            yield "the nested form (event.error) is missing"
            return
        yield from check_keys(nested, {"type": (str,), **_ERROR_FIELDS}, "event.error")
        for key in _ERROR_FIELDS:
            if nested.get(key) != event.get(key):
                yield f"error.{key} is {nested.get(key)!r} nested and {event.get(key)!r} flat"

    def _take_added(self, event: Mapping[str, Any]) -> Iterator[str]:
        self._narrated = True
        wrong = list(check_keys(event, _WHOLE_ITEM_FIELDS, "event"))
        yield from wrong
        if wrong:
            return
        item, index = event["item"], event["output_index"]
        item_id, kind = str(item.get("id")), str(item.get("type"))
        state = ItemState(item_id, kind, index, item, deltas_optional=self._deltas_optional)
        yield from state.check_opening()
        if item_id in self._used_ids:
            yield f"the id {item_id} was used before"
        if index != self._next_index and (self._prefix_known or index < self._next_index):
            yield f"output_index is {index}, the next one is {self._next_index}"
        for other in self._items.values():
            if other.closed is None and other.is_text:
                yield f"it opens while the {other.kind} {other.id} is open"
            if other.opening is not None and item.get("call_id", 0) == other.opening.get("call_id"):
                yield f"the call_id {item['call_id']} was used before"
        self._items[item_id] = state
        self._used_ids.add(item_id)
        self._next_index = max(self._next_index, index + 1)

    def _take_done(self, event: Mapping[str, Any]) -> Iterator[str]:
        wrong = list(check_keys(event, _WHOLE_ITEM_FIELDS, "event"))
        yield from wrong
        if wrong:
            return
        item = event["item"]
        state = self._known(str(item.get("id")), str(item.get("type")), event["output_index"])
        self._narrated = True
        if state is None:
            yield f"the item {item.get('id')} was never added"
            return
        yield from self._check_open_at(state, event["output_index"])
        yield from state.close(item)

    def _take_item_event(self, kind: str, event: Mapping[str, Any]) -> Iterator[str]:
        rule = ITEM_EVENTS[kind]
        wrong = list(check_keys(event, {**_ITEM_FIELDS, **rule.fields}, "event"))
        yield from wrong
        if wrong:
            return
        state = self._known(event["item_id"], _kind_of_item(kind, event), event["output_index"])
        self._narrated = True
        if state is None:
            yield f"the item {event['item_id']} was never added"
            return
        if state.kind not in rule.kinds:
            yield f"the item {state.id} is a {state.kind}"
            return
        yield from self._check_open_at(state, event["output_index"])
        yield from rule.apply(state, event)

    def _known(self, item_id: str, kind: str, index: int) -> ItemState | None:
        """The item of this id; one that was added before the cursor is taken as it is met."""
        state = self._items.get(item_id)
        if state is None and not self._prefix_known and item_id not in self._used_ids:
            return self._adopt(item_id, kind, index)
        return state

    def _check_open_at(self, state: ItemState, index: int) -> Iterator[str]:
        if state.closed is not None:
            yield f"the item {state.id} was done before"
        if state.index != index:
            yield f"output_index is {index}, the item was added at {state.index}"


def _kind_of_item(kind: str, event: Mapping[str, Any]) -> str:
    """Which item an event speaks of, for one that was not seen to open."""
    kinds = ITEM_EVENTS[kind].kinds
    if len(kinds) == 1:
        return min(kinds)
    return "reasoning" if event["part"].get("type") == "reasoning_text" else "message"
