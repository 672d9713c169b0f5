"""Ids. Time and randomness are arguments; what can be derived is derived.

Response and run ids begin with their time in hexadecimal, so that rows written together lie together.
Ids of items that a model call made hold the stem of their step, the attempt and a running number:
a later attempt can never use an id again, and which calls belong to one answer can be read off.
"""

from hashlib import sha256

from antiphon.domain.steps import STEP_STEM_LENGTH

_RANDOM_BYTES = 10
_HEXADECIMAL = frozenset("0123456789abcdef")


def time_ordered_id(prefix: str, now_s: float, random: bytes) -> str:
    """`prefix_` and 32 hexadecimal digits: 12 of milliseconds, 20 of randomness (10 bytes)."""
    return f"{prefix}_{int(now_s * 1000):012x}{random[:_RANDOM_BYTES].hex()}"


def run_id_of(response_id: str) -> str:
    """The id of the run that a new response starts."""
    return "run_" + response_id.removeprefix("resp_")


def attempt_stem(step_id: str, attempt: int) -> str:
    """What all ids made by one attempt at a step share.

    Ids of ours hold their stem; ids from elsewhere may look like anything and are digested.
    """
    stem = step_id.removeprefix("step_")
    if len(stem) != STEP_STEM_LENGTH or not _HEXADECIMAL.issuperset(stem):
        stem = sha256(step_id.encode()).hexdigest()[:STEP_STEM_LENGTH]
    return f"{stem}{attempt:02x}"


def made_id(prefix: str, stem: str, index: int) -> str:
    """The id of the `index`-th thing that an attempt made."""
    return f"{prefix}_{stem}{index:04x}"


def call_id_of(item_id: str) -> str:
    """The id that pairs a call with its result, the same whenever the item is shown to a model."""
    return "call_" + item_id.partition("_")[2]


def stem_of(item_id: str) -> str | None:
    """The attempt stem in an item id of ours, None for ids from elsewhere.

    >>> stem_of("fc_" + "a" * 24 + "00" + "0001") == "a" * 24 + "00"
    True
    """
    _, _, tail = item_id.partition("_")
    if len(tail) != STEP_STEM_LENGTH + 6 or not _HEXADECIMAL.issuperset(tail):
        return None
    return tail[:-4]
