"""Tool choice: it must name what the model can be offered.

Tools of kinds that we do not have (hosted ones, other people's MCP servers) are left out of a request with
a warning. A choice that forces one of them is refused: nobody could do what it asks, and clients that
force a tool fail on an answer without it. A list of allowed tools merely loses it.
"""

from collections.abc import Collection, Iterable
from typing import Any

from antiphon.domain.errors import InvalidRequestError

JSONObject = dict[str, Any]

SERVER_LABEL = "antiphon"


def is_offered(tool: JSONObject) -> bool:
    """Whether a tool in a request is of a kind that we can offer a model."""
    return tool["type"] == "function" or (tool["type"] == "mcp" and tool.get("server_label") == SERVER_LABEL)


def refuse_unknown(tools: Iterable[JSONObject]) -> None:
    """For the strict: refuse the first tool that would be left out; raises `InvalidRequestError`."""
    for place, tool in enumerate(tools):
        if not is_offered(tool):
            raise InvalidRequestError(
                f"Tools of type {tool['type']!r} are not available here.",
                param=f"tools[{place}].type",
                code="unsupported_tool",
                hint="This server is set to refuse what it cannot offer (server.unknown_tools: reject).",
            )


def held_to(choice: Any, known: Collection[str]) -> tuple[Any, list[str]]:
    """The choice that counts, and what of the given one is ignored; raises `InvalidRequestError`.

    `known` are the names of all tools that the model is offered.
    """
    match choice:
        case "required" if not known:
            raise _refused("tool_choice is 'required', but there are no tools.")
        case {"type": "allowed_tools"}:
            return _of_allowed(choice, known)
        case {"type": "function" | "mcp", "name": str() as name} if name:
            _check_name(name, known)
        case {"type": kind}:
            raise InvalidRequestError(
                f"tool_choice of type {kind!r} cannot be honoured here.",
                param="tool_choice",
                code="unsupported_parameter",
                hint="Give the tool as a function, or leave the choice to the model.",
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
    if kept:
        return {**choice, "tools": kept}, ignored
    if choice.get("mode") == "required":
        raise _refused("tool_choice is 'required', but none of the allowed tools is here.")
    return "none", ignored


def _check_name(name: str, known: Collection[str]) -> None:
    if name not in known:
        raise _refused(f"tool_choice names {name!r}, which is not among the tools.")


def _refused(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="tool_choice", code="invalid_value")
