"""What tools really did: every raw call, on disk before the tool goes on.

A tool of a test opens the ledger by its path and records `start` before it acts and `end` after. The
file outlives the killed process, so afterwards it tells, against whatever the journal claims, which
calls ran, how often, and in which process.
"""

import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

import msgspec

from antiphon.testing.durable_lines import append_line, read_lines

Phase = Literal["start", "end"]


class LedgerCall(msgspec.Struct, frozen=True, kw_only=True):
    """One line: a tool began (`start`) or finished (`end`) under this idempotency key.

    `time` is in Unix seconds; `arguments` is whatever the tool chose to record.
    """

    tool: str
    key: str
    phase: Phase
    arguments: Any
    pid: int
    time: float


class EffectLedger:
    """The ledger in the file at `path`. Safe for many processes and threads at once."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def record(self, *, tool: str, key: str, arguments: Any = None, phase: Phase = "start") -> None:
        """Write one line and wait until it is on disk."""
        append_line(
            self.path,
            LedgerCall(
                tool=tool, key=key, phase=phase, arguments=arguments, pid=os.getpid(), time=time.time()
            ),
        )

    def lines(self) -> list[LedgerCall]:
        """Every line, in the order of writing."""
        return msgspec.convert(read_lines(self.path), list[LedgerCall])

    def calls(self) -> list[LedgerCall]:
        """The calls that were begun, in order."""
        return [line for line in self.lines() if line.phase == "start"]

    def by_key(self) -> dict[str, list[LedgerCall]]:
        """The calls that were begun, under their idempotency keys."""
        keyed: dict[str, list[LedgerCall]] = defaultdict(list)
        for call in self.calls():
            keyed[call.key].append(call)
        return dict(keyed)

    def doubled_keys(self) -> list[str]:
        """Keys whose call was begun more than once: forbidden for `once` tools."""
        return [key for key, calls in self.by_key().items() if len(calls) > 1]

    def doubled_effects(self) -> list[tuple[str, Any]]:
        """Tool and arguments begun more than once, whatever the keys say.

        For scripts whose every call has arguments of its own: finds a call that was repeated under
        another key.
        """
        seen: dict[tuple[str, bytes], list[LedgerCall]] = defaultdict(list)
        for call in self.calls():
            seen[call.tool, msgspec.json.encode(call.arguments, order="sorted")].append(call)
        return [(calls[0].tool, calls[0].arguments) for calls in seen.values() if len(calls) > 1]

    def unfinished_keys(self) -> list[str]:
        """Keys that were begun and whose last call has no `end`: cut off in the middle."""
        ends: dict[str, int] = defaultdict(int)
        for line in self.lines():
            ends[line.key] += 1 if line.phase == "end" else 0
        return [key for key, calls in self.by_key().items() if ends[key] < len(calls)]
