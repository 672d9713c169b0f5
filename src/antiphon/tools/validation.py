"""Arguments against their JSON Schema, before a tool runs.

What is wrong goes back to the model, so each complaint begins with the JSON path that it is about.
"""

from collections.abc import Sequence
from typing import Any

import jsonschema_rs

from antiphon.domain.errors import ConfigurationError, ToolInvalidArgumentsError
from antiphon.domain.tools import ToolSchema

_MOST_COMPLAINTS = 5
_LONGEST_COMPLAINT = 300


class ArgumentsValidator:
    """The compiled schema of one tool. Safe for many tasks and threads at once."""

    __slots__ = ("_validator",)

    def __init__(self, schema: ToolSchema) -> None:
        try:
            self._validator = jsonschema_rs.validator_for(schema.parameters, retriever=_fetch_nothing)
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
            message = str(error).partition("\n")[0]
            raise ConfigurationError(
                f"the parameters of tool {schema.name!r} are not a JSON Schema: {message}"
            ) from error

    def check(self, arguments: Any) -> None:
        """Raise `ToolInvalidArgumentsError`, naming up to five places, unless the arguments fit."""
        if self._validator.is_valid(arguments):
            return
        complaints = []
        for error in self._validator.iter_errors(arguments):
            complaints.append(f"{json_path(error.instance_path)}: {_shortened(error.message)}")
            if len(complaints) == _MOST_COMPLAINTS:
                break
        raise ToolInvalidArgumentsError("; ".join(complaints))


def _fetch_nothing(uri: str) -> Any:
    """A schema may come from elsewhere: it must not make this process fetch addresses."""
    message = f"references outside of the schema are not followed ({uri})"
    raise ValueError(message)


def json_path(path: Sequence[str | int]) -> str:
    """A place in a JSON value, as people write it.

    >>> json_path(["items", 0, "qty"]), json_path([]), json_path(["a b"])
    ('$.items[0].qty', '$', '$["a b"]')
    """
    return "$" + "".join(_path_part(part) for part in path)


def _path_part(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if part.isidentifier() else f'["{part}"]'


def _shortened(message: str) -> str:
    if len(message) <= _LONGEST_COMPLAINT:
        return message
    half = _LONGEST_COMPLAINT // 2
    return f"{message[:half]} … {message[-half:]}"
