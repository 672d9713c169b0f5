"""How a check says what it wanted: `AssertionError`s with both sides, which `python -O` does not remove."""

from collections.abc import Awaitable
from typing import Any, TypeVar

E = TypeVar("E", bound=BaseException)


def same(found: Any, wanted: Any, what: str = "the value") -> None:
    """Both are equal."""
    if found != wanted:
        raise AssertionError(f"{what}: found {found!r}, wanted {wanted!r}")


def true(found: Any, what: str) -> None:
    """It is so."""
    if not found:
        raise AssertionError(f"it should be so that {what}; found {found!r}")


async def raises(kind: type[E], call: Awaitable[Any]) -> E:
    """The awaited call raises this error, which is returned."""
    try:
        value = await call
    except kind as error:
        return error
    raise AssertionError(f"found {value!r}, wanted {kind.__name__} to be raised")


def outcome_is(found: Any, kind: type[E]) -> E:
    """The outcome of an entry is an error of this kind, which is returned."""
    if not isinstance(found, kind):
        raise AssertionError(f"found {found!r} as the outcome, wanted {kind.__name__}")  # noqa: TRY004 - a check failed
    return found
