"""Lines that many processes append to one file, each on disk before the call returns.

One `write` on an `O_APPEND` descriptor, then `fsync`: lines of several processes never mix, and a
process killed in between leaves at most one torn last line, which readers skip.
"""

import os
from pathlib import Path
from typing import Any

import msgspec


def append_line(path: Path | str, value: Any) -> None:
    """Append `value` as one line of JSON and wait until it is on disk."""
    line = msgspec.json.encode(value) + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        if os.write(descriptor, line) != len(line):
            message = f"the disk under {path} took only part of a line"
            raise OSError(message)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines(path: Path | str) -> list[Any]:
    """All whole lines; none when the file does not exist yet."""
    file = Path(path)
    if not file.exists():
        return []
    *whole, _torn = file.read_bytes().split(b"\n")
    return [msgspec.json.decode(line) for line in whole if line]
