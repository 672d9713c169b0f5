"""Splitting server-sent events."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.core.sse import SseSplitter
from antiphon.domain.errors import SerializationError

WIRE = (
    b"\xef\xbb\xbf: hello\n\n"
    b"data: one\n\n"
    b"event: note\r\ndata: two\r\ndata:zwei\r\nid: 7\r\n\r\n"
    b"retry: 10\n\n"
    b"data: \xf0\x9f\xa6\x94\rdata\rdata:  x\r\r"
    b"\n\n\ndata:\n\n"
    b": ping\ndata: {}\n\n"
    b"data: last"
)
PAYLOADS = [b"one", b"two\nzwei", "🦔\n\n x".encode(), b"", b"{}", b"last"]


def split(pieces: list[bytes], **options: int) -> list[bytes]:
    splitter = SseSplitter(**options)
    return [payload for piece in pieces for payload in splitter.feed(piece)] + splitter.close()


def test_all_forms_of_lines_and_fields() -> None:
    """LF, CRLF, CR, comments, several data lines, other fields, a byte order mark, no closing line."""
    assert split([WIRE]) == PAYLOADS


@pytest.mark.parametrize("at", range(len(WIRE) + 1))
def test_every_single_border(at: int) -> None:
    """Where the bytes are cut makes no difference."""
    assert split([WIRE[:at], WIRE[at:]]) == PAYLOADS


def test_byte_by_byte() -> None:
    """Nor does it when every byte comes alone."""
    assert split([WIRE[at : at + 1] for at in range(len(WIRE))]) == PAYLOADS


LINES = st.sampled_from([b"data: a", b"data:b", b"data", b": c", b"event: e", b"x", b"", b"data: \xc5\xbc"])
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(
    lines=st.lists(st.tuples(LINES, ENDS), max_size=30),
    cuts=st.lists(st.integers(0, 200), max_size=12),
    bom=st.booleans(),
)
@example(lines=[(b"data: a", b"\r\n"), (b"", b"\n")], cuts=[8], bom=False)
def test_any_stream_at_any_borders(lines: list[tuple[bytes, bytes]], cuts: list[int], bom: bool) -> None:
    """Against a line-by-line reading of the whole: the same events, whatever the lines and cuts."""
    wire = b"".join(line + end for line, end in lines)
    expected: list[bytes] = []
    data: list[bytes] = []
    text = wire.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for line in [*text.split(b"\n"), b""]:
        if not line:
            expected += [b"\n".join(data)] if data else []
            data = []
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
    if bom:
        wire = b"\xef\xbb\xbf" + wire
    borders = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    assert split([wire[a:b] for a, b in itertools.pairwise(borders)]) == expected


@pytest.mark.parametrize("size", [1, 2, 7, 102, 1000])
def test_events_are_bounded(size: int) -> None:
    """An event over the bound is refused wherever it is cut, one at the bound is not."""
    event = b"data: " + b"x" * 94
    wire = b"\n" * 102 + event + b"\n\n" + event + b"\n\n"
    pieces = [wire[at : at + size] for at in range(0, len(wire), size)]
    assert split(pieces, max_event_bytes=100) == [b"x" * 94] * 2
    with pytest.raises(SerializationError):
        split(pieces, max_event_bytes=99)


def test_an_endless_event_is_refused_before_it_ends() -> None:
    """What never ends cannot fill the memory."""
    splitter = SseSplitter(max_event_bytes=1000)
    with pytest.raises(SerializationError):
        list(map(splitter.feed, [b"data: " + b"x" * 100] * 1000))


def test_large_events_in_small_pieces() -> None:
    """A large event is put together in linear time."""
    payload = b"y" * 4_000_000
    wire = b"data: " + payload + b"\n\n"
    assert split([wire[at : at + 500] for at in range(0, len(wire), 500)]) == [payload]
