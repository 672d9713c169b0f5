"""JSON values that fit a schema, as plain as possible.

For the rehearsal model, which has to call tools and fill forms without understanding them. Covers what
tool and answer schemas use: types, enums, const, defaults, required members, nested objects and arrays,
bounds, formats, references, combinations. A `pattern` is not read. Pure and deterministic.
"""

import math
from collections.abc import Mapping
from typing import Any

JsonSchema = Mapping[str, Any]

_MAX_DEPTH = 12
_FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "email": "rehearsal@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def fitting_value(schema: Any, word: str = "rehearsal") -> Any:
    """A value that fits `schema`; strings that are free to be anything hold `word`."""
    return _Fitting(schema, word).value(schema, 0)


def given_type(schema: Any) -> str | None:
    """The JSON type that a schema asks for, null aside; None when it leaves that open."""
    if not isinstance(schema, Mapping):
        return None
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), "null")
    if kind is None and "properties" in schema:
        return "object"
    if kind is None and ("items" in schema or "prefixItems" in schema):
        return "array"
    return kind if isinstance(kind, str) else None


class _Fitting:
    def __init__(self, root: Any, word: str) -> None:
        self._root = root
        self._word = word

    def value(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return None
        for name in ("const", "default"):
            if name in schema:
                return schema[name]
        for name in ("enum", "examples"):
            if schema.get(name):
                return schema[name][0]
        if "$ref" in schema:
            return self.value(self._resolved(schema["$ref"]), depth + 1)
        for name in ("anyOf", "oneOf"):
            if schema.get(name):
                return self.value(self._shallowest(schema[name]), depth + 1)
        if schema.get("allOf"):
            return self._all_of(schema, depth)
        return self._of_type(given_type(schema), schema, depth)

    def _of_type(self, kind: str | None, schema: JsonSchema, depth: int) -> Any:
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._string(schema)
            case "integer":
                return _number(schema, whole=True)
            case "number":
                return _number(schema, whole=False)
            case "boolean":
                return True
            case "null":
                return None
            case _:
                return self._word

    def _object(self, schema: JsonSchema, depth: int) -> dict[str, Any]:
        properties = schema.get("properties") or {}
        return {
            name: self.value(properties.get(name, {}), depth + 1) for name in schema.get("required") or ()
        }

    def _array(self, schema: JsonSchema, depth: int) -> list[Any]:
        items = [self.value(each, depth + 1) for each in schema.get("prefixItems") or ()]
        wanted = int(schema.get("minItems", 1))
        if depth >= _MAX_DEPTH // 2 and "minItems" not in schema:
            wanted = 0
        inner = schema.get("items", {"type": "string"})
        while len(items) < wanted and inner is not False:
            items.append(self._distinct(inner, len(items), depth))
        return items

    def _distinct(self, schema: Any, number: int, depth: int) -> Any:
        """The `number`-th item: enums are gone through, numbers counted up, words numbered."""
        if isinstance(schema, Mapping) and schema.get("enum"):
            return schema["enum"][number % len(schema["enum"])]
        value = self.value(schema, depth + 1)
        if number and type(value) is int:
            return value + number
        if number and isinstance(value, str) and value == self._word:
            return f"{value} {number + 1}"
        return value

    def _string(self, schema: JsonSchema) -> str:
        text = _FORMATS.get(str(schema.get("format")), self._word)
        least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
        while len(text) < least:
            text += f" {self._word}"[: least - len(text)] if self._word else "x"
        return text if most is None else text[: int(most)]

    def _all_of(self, schema: JsonSchema, depth: int) -> Any:
        merged: dict[str, Any] = {name: value for name, value in schema.items() if name != "allOf"}
        for part in schema["allOf"]:
            given = self._resolved(part["$ref"]) if isinstance(part, Mapping) and "$ref" in part else part
            for name, value in given.items() if isinstance(given, Mapping) else ():
                match merged.get(name):
                    case dict() as known if isinstance(value, Mapping):
                        merged[name] = {**known, **value}
                    case list() as known if isinstance(value, list):
                        merged[name] = [*known, *value]
                    case _:
                        merged[name] = value
        return self.value(merged, depth + 1)

    def _shallowest(self, choices: list[Any]) -> Any:
        """The first choice that says something; a reference, which may lead back here, last of all."""

        def cost(choice: Any) -> int:
            if not isinstance(choice, Mapping):
                return 0
            return 2 if "$ref" in choice else int(choice.get("type") == "null")

        return min(choices, key=cost)

    def _resolved(self, reference: Any) -> Any:
        found: Any = self._root
        for name in str(reference).removeprefix("#").strip("/").split("/"):
            key = name.replace("~1", "/").replace("~0", "~")
            if not key:
                continue
            if not isinstance(found, Mapping) or key not in found:
                return {}
            found = found[key]
        return found


def _number(schema: JsonSchema, *, whole: bool) -> int | float:
    step = schema.get("multipleOf") or (1 if whole else None)
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    nudge = step or _nudge(above, below)
    if low is None and above is not None:
        low = above + nudge if step is None else step * (math.floor(above / step) + 1)
    if high is None and below is not None:
        high = below - nudge if step is None else step * (math.ceil(below / step) - 1)
    if low is not None:
        value = low
    elif high is not None and high < 1:
        value = high
    else:
        value = 1
    if step is not None and value % step:
        value = step * (math.ceil(value / step) if low is not None else math.floor(value / step))
        if low is None and high is None:
            value = step
    return int(value) if whole else value


def _nudge(above: float | None, below: float | None) -> float:
    """A little, and less than half of the gap where both ends are open."""
    return 0.5 if above is None or below is None else (below - above) / 4
