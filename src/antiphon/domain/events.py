"""Events: one thing that a reader of a response is told, encoded once.

`data` is the event's JSON object on one line, as UTF-8; every reader and the log share those bytes.
"""

from typing import Any

import msgspec

_decode = msgspec.json.decode

TERMINAL_TYPES = frozenset({"response.completed", "response.incomplete", "response.failed"})


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event: its place in the stream, its type, and its JSON bytes."""

    sequence_number: int
    type: str
    data: bytes

    @property
    def is_terminal(self) -> bool:
        """True for the one event that ends a stream."""
        return self.type in TERMINAL_TYPES

    def to_dict(self) -> dict[str, Any]:
        """The event as a JSON object."""
        value: dict[str, Any] = _decode(self.data)
        return value

    def frame(self) -> bytes:
        """The event as it stands in an event stream (LF only, one `data:` line)."""
        return b"event: %b\ndata: %b\n\n" % (self.type.encode(), self.data)
