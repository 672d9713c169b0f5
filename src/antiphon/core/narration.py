"""Narration: what happens in a run, told as wire events in one strictly rising sequence.

A `Narrator` numbers events and output items. It is told what happened (`item_added`, `text_delta`,
`ended` …) and hands finished `Event`s to `emit`. Each event is encoded once, here; the hot ones are
spliced from pre-encoded pieces. With `emit=None` nobody listens and nothing is encoded.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from antiphon.domain.events import Event

encode = msgspec.json.encode
Emit = Callable[[Event], None]

TERMINAL_EVENT = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.failed",
}


class Narrator:
    """The one place that allots sequence numbers and output indexes of a response."""

    __slots__ = ("_emit", "output_index", "sequence_number")

    def __init__(self, emit: Emit | None, *, sequence_number: int = 0, output_index: int = 0) -> None:
        self._emit = emit
        self.sequence_number = sequence_number
        self.output_index = output_index

    @property
    def listening(self) -> bool:
        """False when nothing needs to be encoded."""
        return self._emit is not None

    def take_output_index(self) -> int:
        """The place of the next output item."""
        index = self.output_index
        self.output_index = index + 1
        return index

    def say(self, event_type: str, rest: bytes) -> None:
        """Tell one event. `rest` are its remaining members, encoded, without braces."""
        if self._emit is None:
            return
        number = self.sequence_number
        self.sequence_number = number + 1
        data = b'{"type":"%b","sequence_number":%d,%b}' % (event_type.encode(), number, rest)
        self._emit(Event(number, event_type, data))

    def response(self, event_type: str, body: bytes) -> None:
        """An event that carries the whole response: `response.created`, `.in_progress`, the terminal ones."""
        self.say(event_type, b'"response":%b' % body)

    def ended(self, status: str, body: bytes) -> None:
        """The one terminal event, the one that fits the status."""
        self.response(TERMINAL_EVENT[status], body)

    def error(self, error: Mapping[str, Any]) -> None:
        """An `error` event, flat and nested: clients read one form or the other."""
        flat = {key: error.get(key) for key in ("code", "message", "param")}
        nested = {"type": error.get("type") or "server_error", **flat}
        self.say("error", encode({**flat, "error": nested})[1:-1])

    def item_added(self, index: int, item: Mapping[str, Any]) -> None:
        """An output item has begun."""
        if self._emit is not None:
            self.say("response.output_item.added", b'"output_index":%d,"item":%b' % (index, encode(item)))

    def item_done(self, index: int, item: Mapping[str, Any]) -> None:
        """An output item has ended."""
        if self._emit is not None:
            self.say("response.output_item.done", b'"output_index":%d,"item":%b' % (index, encode(item)))

    def item_event(self, event_type: str, item_id: str, index: int, rest: bytes = b"") -> None:
        """An event of one item that is not about a content part."""
        if self._emit is not None:
            comma = b"," if rest else b""
            self.say(
                event_type, b'"item_id":"%b","output_index":%d%b%b' % (item_id.encode(), index, comma, rest)
            )
