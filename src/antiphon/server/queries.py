"""Query parameters, checked."""

from collections.abc import Sequence

from starlette.requests import Request

from antiphon.domain.errors import InvalidRequestError

_TRUE = frozenset({"true", "1", "yes"})
_FALSE = frozenset({"false", "0", "no", ""})

MOST = 2**53


def flag(request: Request, name: str) -> bool:
    """A boolean; false when it is not given."""
    value = request.query_params.get(name, "").lower()
    if value not in _TRUE | _FALSE:
        raise InvalidRequestError(f"'{name}' is true or false.", param=name, code="invalid_type")
    return value in _TRUE


def integer(request: Request, name: str, *, default: int, least: int, most: int = MOST) -> int:
    """A whole number within bounds."""
    value = request.query_params.get(name)
    if value is None:
        return default
    try:
        number = int(value)
    except ValueError:
        raise InvalidRequestError(f"'{name}' is a whole number.", param=name, code="invalid_type") from None
    if not least <= number <= most:
        raise InvalidRequestError(
            f"'{name}' is between {least} and {most}.", param=name, code="invalid_value"
        )
    return number


def one_of(request: Request, name: str, values: Sequence[str], *, default: str) -> str:
    """One of a few words."""
    value = request.query_params.get(name, default)
    if value not in values:
        raise InvalidRequestError(
            f"'{name}' is one of {', '.join(values)}.", param=name, code="invalid_value"
        )
    return value
