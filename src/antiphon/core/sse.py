"""Splitting a stream of server-sent events, as bytes arrive.

`SseSplitter.feed` takes bytes cut at any place and gives back the data of every event that is now
whole. What it yields never depends on where the cuts were. Follows the WHATWG rules: lines end with
LF, CRLF or CR; several `data` lines are joined by LF; comments and other fields are left out; a byte
order mark at the start is dropped; events without data give nothing.

Pure: no I/O, no clock. Bounded: an event larger than `max_event_bytes` raises `SerializationError`.
"""

from antiphon.domain.errors import SerializationError

MAX_EVENT_BYTES = 16 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"
_PLAIN = b"data: "


class SseSplitter:
    """Bytes in, data of events out. One instance per stream."""

    __slots__ = ("_bom_open", "_buffer", "_max_event_bytes", "_swallow_lf")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._buffer = bytearray()
        self._bom_open = True
        self._swallow_lf = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that `chunk` completes, in order."""
        if not chunk:
            return []
        if self._swallow_lf or b"\r" in chunk:
            chunk = self._with_lf_only(chunk)
        buffer = self._buffer
        if not buffer and not self._bom_open and chunk.endswith(b"\n\n"):
            # The usual case: whole events, nothing left over before or after; mostly a single one.
            if chunk.startswith(_PLAIN) and chunk.find(b"\n") == len(chunk) - 2 <= self._max_event_bytes:
                return [chunk[6:-2]]
            return self._payloads(chunk[:-2].split(b"\n\n"))
        scanned = max(0, len(buffer) - 1)
        buffer += chunk
        if self._bom_open and not self._drop_bom():
            return []
        end = buffer.rfind(b"\n\n", scanned)
        if end < 0:
            self._check_rest()
            return []
        whole = bytes(buffer[:end])
        del buffer[: end + 2]
        payloads = self._payloads(whole.split(b"\n\n"))
        self._check_rest()
        return payloads

    def close(self) -> list[bytes]:
        """What is left when the stream ends: an event whose closing blank line was forgotten."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return self._payloads([rest.rstrip(b"\n")]) if rest else []

    def _with_lf_only(self, chunk: bytes) -> bytes:
        """Turn CRLF and CR into LF; a CR at the end counts at once and swallows an LF that follows."""
        if self._swallow_lf and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            if not chunk:
                self._swallow_lf = False
                return chunk
        self._swallow_lf = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _drop_bom(self) -> bool:
        """False while the first bytes could still become a byte order mark."""
        buffer = self._buffer
        if len(buffer) < len(_BOM) and _BOM.startswith(buffer):
            return False
        self._bom_open = False
        if buffer.startswith(_BOM):
            del buffer[: len(_BOM)]
        return True

    def _payloads(self, blocks: list[bytes]) -> list[bytes]:
        payloads = []
        for block in blocks:
            if len(block) > self._max_event_bytes:
                self._check_size(block)
            if block.startswith(_PLAIN) and b"\n" not in block:
                payloads.append(block[6:])
            elif (payload := _data_of(block)) is not None:
                payloads.append(payload)
        return payloads

    def _check_rest(self) -> None:
        if len(self._buffer) > self._max_event_bytes:
            self._check_size(self._buffer)

    def _check_size(self, block: bytes | bytearray) -> None:
        """Blank lines around an event do not count: where they fall depends on the cuts."""
        if len(block.strip(b"\n")) > self._max_event_bytes:
            raise SerializationError(f"a server-sent event is larger than {self._max_event_bytes} bytes")


def _data_of(block: bytes) -> bytes | None:
    """The joined data lines of one event, None when it has none."""
    lines = []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value[1:] if value.startswith(b" ") else value)
    return b"\n".join(lines) if lines else None
