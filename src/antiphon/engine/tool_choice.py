"""Tool choice: what of it can be held to, once the tools that we do not have are left out.

A choice must name what the model can be offered; one that names nothing is refused. Tools of kinds that
we do not have (hosted ones, other people's MCP servers) are left out of a request with a warning, and so
is what a choice says of them: the request goes on without.
"""

from collections.abc import Collection
from typing import Any

from antiphon.domain.errors import InvalidRequestError

JSONObject = dict[str, Any]

SERVER_LABEL = "antiphon"


def is_ours_or_function(tool: JSONObject) -> bool:
    """Whether a tool in a request is one that we can offer a model."""
    return tool["type"] == "function" or (tool["type"] == "mcp" and tool.get("server_label") == SERVER_LABEL)


def held_to(choice: Any, known: Collection[str], *, some_left_out: bool) -> tuple[Any, list[str]]:
    """The choice that counts, and what of the given one does not; raises `InvalidRequestError`.

    `known` are the names of all tools that the model is offered; `some_left_out` is true when the request
    has tools besides those.
    """
    match choice:
        case "required" if not known and not some_left_out:
            raise _refused("tool_choice is 'required', but there are no tools.")
        case "required" if not known:
            return "auto", ["tool_choice: required"]
        case {"type": "allowed_tools"}:
            return _of_allowed(choice, known)
        case {"type": "function", "name": str() as name}:
            _check_name(name, known)
        case {"type": "mcp", "name": str() as name} if name in known:
            pass
        case {"type": kind} if some_left_out:
            return "auto", [f"tool_choice: {kind}"]
        case {"type": "mcp", "name": str() as name}:
            _check_name(name, known)
        case {"type": kind}:
            raise InvalidRequestError(
                f"tool_choice of type {kind!r} cannot be honoured here.",
                param="tool_choice",
                code="unsupported_parameter",
            )
    return choice, []


def _of_allowed(choice: JSONObject, known: Collection[str]) -> tuple[Any, list[str]]:
    kept: list[JSONObject] = []
    ignored: list[str] = []
    for tool in choice["tools"]:
        name = tool.get("name")
        if name in known:
            kept.append(tool)
        elif tool.get("type", "function") == "function" or tool.get("server_label") == SERVER_LABEL:
            _check_name(str(name), known)
        else:
            ignored.append(f"tool_choice: {tool['type']}")
    if not ignored:
        return choice, []
    return ({**choice, "tools": kept} if kept else "none"), ignored


def _check_name(name: str, known: Collection[str]) -> None:
    if name not in known:
        raise _refused(f"tool_choice names {name!r}, which is not among the tools.")


def _refused(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="tool_choice", code="invalid_value")
