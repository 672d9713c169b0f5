"""Durations and sizes as people write them: `5ms`, `30s`, `2m`, `64MB`.

Durations become seconds (float), sizes bytes (int). A bare number is seconds or bytes.
Raises `ValueError` with what was expected.
"""

import re

_NUMBER_AND_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {
    "": 1, "b": 1,
    "kb": 1000, "mb": 1000**2, "gb": 1000**3,
    "kib": 1024, "mib": 1024**2, "gib": 1024**3,
}  # fmt: skip


def _split(value: str, units: dict[str, float] | dict[str, int], examples: str) -> float:
    match = _NUMBER_AND_UNIT.fullmatch(value.strip())
    unit = units.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{value!r} should be {examples}")
    return float(match[1]) * unit


def parse_duration(value: object) -> object:
    """Seconds. What is not a string is left for the schema to judge."""
    if not isinstance(value, str):
        return value
    return _split(value, _SECONDS, "a duration such as 5ms, 30s, 2m or 1h")


def parse_size(value: object) -> object:
    """Bytes. What is not a string is left for the schema to judge."""
    if not isinstance(value, str):
        return value
    return int(_split(value, _BYTES, "a size such as 64MB, 512KiB or a number of bytes"))


def format_duration(seconds: float) -> str:
    """The shortest way to write it that `parse_duration` reads back.

    >>> format_duration(0.005), format_duration(90), format_duration(120)
    ('5ms', '90s', '2m')
    """
    for unit in ("d", "h", "m", "s"):
        amount = seconds / _SECONDS[unit]
        if amount >= 1 and amount == int(amount):
            return f"{int(amount)}{unit}"
    return f"{seconds * 1000:.6f}".rstrip("0").rstrip(".") + "ms"


def format_size(size_bytes: int) -> str:
    """The shortest way to write it that `parse_size` reads back.

    >>> format_size(64_000_000), format_size(1024)
    ('64MB', '1KiB')
    """
    for unit in ("GB", "GiB", "MB", "MiB", "KB", "KiB"):
        if size_bytes and size_bytes % _BYTES[unit.lower()] == 0:
            return f"{size_bytes // _BYTES[unit.lower()]}{unit}"
    return str(size_bytes)
