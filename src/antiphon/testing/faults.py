"""What can go wrong with a model server, by name.

A `Fault` strikes one request. It is queued (`FakeUpstream.inject`), asked for by the header
`x-fake-fault` (JSON), or written into the prompt: `[[fault:cut after=3]]` strikes the first attempt at
those messages, `[[fault:status status=503 times=2]]` the first two.
"""

import re
from enum import StrEnum
from typing import Any

import msgspec


class FaultKind(StrEnum):
    """How a request goes wrong."""

    HANG_BEFORE_HEADERS = "hang_before_headers"
    HANG_MID_STREAM = "hang"
    CUT_MID_STREAM = "cut"
    END_EARLY = "end_early"
    STATUS = "status"
    GARBAGE = "garbage"
    HTML = "html"
    EMPTY = "empty"
    ERROR_IN_200 = "error_in_200"
    ERROR_MID_STREAM = "error_mid_stream"
    DUPLICATE_CHUNKS = "duplicate_chunks"
    SLOW = "slow"


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One request's misfortune.

    `after` counts the chunks that are sent before `hang`, `cut` (connection reset), `end_early` (a
    clean end without a finish) or `error_mid_stream`; an answer that is shorter is struck before its last
    chunk. `status` and `retry_after` (seconds) belong to
    `status`, `pace_s` (seconds between chunks) to `slow`.
    """

    kind: FaultKind
    after: int = 2
    status: int = 503
    retry_after: float | None = None
    pace_s: float = 0.05
    times: int = 1


_DIRECTIVE = re.compile(r"\[\[fault:(\w+)((?:\s+\w+=[\w.]+)*)\]\]")


def fault_in(text: str) -> Fault | None:
    """The fault that a prompt asks for, or None."""
    found = _DIRECTIVE.search(text)
    if found is None:
        return None
    options: dict[str, Any] = dict(pair.split("=", 1) for pair in found[2].split())
    return msgspec.convert({"kind": found[1], **options}, Fault, strict=False)
