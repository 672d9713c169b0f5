"""Which tools a prompt names, and with which arguments.

Three ways to say them, looked for right behind the tool's name:

    weather {"city": "Oslo"}          a JSON object, taken as it is, right or wrong
    weather(city="Oslo", days=3)      as in a program
    weather for city: Oslo days=3     in the words up to the next tool's name; with one tool, anywhere

Required members that were not said are made to fit the schema. A tool that is named several times with
arguments of its own is called as often. Pure.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.upstream.rehearsal.fitting import fitting_value, given_type

JsonObject = dict[str, Any]

# Names of parameters that ask for words of the prompt rather than for any string.
_WORDS_OF_THE_PROMPT = frozenset({"input", "message", "prompt", "query", "question", "task", "text"})

_decoder = json.JSONDecoder()


class NamedCall:
    """A call that a prompt asks for: the tool's name and its arguments as JSON text."""

    __slots__ = ("arguments", "name")

    def __init__(self, name: str, arguments: str) -> None:
        self.name = name
        self.arguments = arguments


def calls_named_in(prompt: str, tools: Sequence[Mapping[str, Any]]) -> list[NamedCall]:
    """The calls of these chat functions (`name`, `parameters`) that `prompt` names, in its order."""
    functions = {str(tool["name"]): tool for tool in tools}
    mentions = _mentions(prompt, functions)
    calls: list[NamedCall] = []
    unsaid: dict[str, NamedCall] = {}
    said = set()
    for at, (start, name) in enumerate(mentions):
        end = mentions[at + 1][0] if at + 1 < len(mentions) else len(prompt)
        behind = prompt[start + len(name) : end]
        # A JSON object may hold the names of other tools.
        given = _given_object(prompt[start + len(name) :])
        if given is None:
            given = _given_pairs(behind, functions[name].get("parameters"))
            if not given and len(mentions) == 1:
                given = _given_pairs(prompt, functions[name].get("parameters"))
            arguments = json.dumps(_completed(given, functions[name].get("parameters"), behind, prompt))
        else:
            arguments = json.dumps(given)
        call = NamedCall(name, arguments)
        if given:
            said.add(name)
            calls.append(call)
        elif name not in unsaid:
            unsaid[name] = call
            calls.append(call)
    return [call for call in calls if call is not unsaid.get(call.name) or call.name not in said]


def call_of(tool: Mapping[str, Any], prompt: str) -> NamedCall:
    """A call of this tool although the prompt does not name it."""
    parameters = tool.get("parameters")
    given = _completed(_given_pairs(prompt, parameters), parameters, prompt, prompt)
    return NamedCall(str(tool["name"]), json.dumps(given))


def _mentions(prompt: str, names: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Where tools are named, outside of another mention's JSON object."""
    if not names:
        return []
    alternatives = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    found: list[tuple[int, str]] = []
    inside_until = 0
    for match in re.finditer(rf"(?<![\w-])(?:{alternatives})(?![\w-])", prompt):
        if match.start() < inside_until:
            continue
        found.append((match.start(), match.group()))
        inside_until = match.end() + _length_of_object(prompt[match.end() :])
    return found


def _given_object(behind: str) -> JsonObject | None:
    """The JSON object that follows a tool's name."""
    stripped = behind.lstrip(" \t\r\n:(`")
    if not stripped.startswith("{"):
        return None
    try:
        value, _ = _decoder.raw_decode(stripped)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _length_of_object(behind: str) -> int:
    stripped = behind.lstrip(" \t\r\n:(`")
    if not stripped.startswith("{"):
        return 0
    try:
        _, end = _decoder.raw_decode(stripped)
    except (ValueError, RecursionError):
        return 0
    return len(behind) - len(stripped) + end


def _given_pairs(words: str, parameters: Any) -> JsonObject:
    """`key=value` and `key: value` for the members that the schema has."""
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    given: JsonObject = {}
    for key, schema in (properties or {}).items():
        pattern = rf'(?<![\w-])"?{re.escape(key)}"?\s*[=:]\s*("(?:[^"\\]|\\.)*"|\'[^\']*\'|[\[{{]|[^\s,;()]+)'
        match = re.search(pattern, words)
        if match is not None:
            given[key] = _read(match.group(1), words[match.start(1) :], schema)
    return given


def _read(token: str, rest: str, schema: Any) -> Any:
    """The value behind a key: JSON where it is some, otherwise its words."""
    kind = given_type(schema)
    if token[0] in "[{":
        try:
            return _decoder.raw_decode(rest)[0]
        except (ValueError, RecursionError):
            return token
    if token[0] == "'":
        return token[1:-1]
    if token[0] != '"':
        token = token.rstrip(".!?") or token
        if kind == "string":
            return token
    try:
        value = json.loads(token)
    except ValueError:
        value = token.strip('"')
    return [value] if kind == "array" and not isinstance(value, list) else value


def _completed(given: JsonObject, parameters: Any, behind: str, prompt: str) -> JsonObject:
    """What was said, and for what is required but was not said something that fits."""
    fitted = fitting_value(parameters)
    if not isinstance(fitted, dict):
        return given
    words = behind.strip(" \t\r\n:,.;()") or prompt.strip()
    for name in fitted:
        if name in _WORDS_OF_THE_PROMPT and fitted[name] == "rehearsal":
            fitted[name] = words
    return {**fitted, **given}
