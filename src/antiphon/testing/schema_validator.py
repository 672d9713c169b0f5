"""Events and responses against published schemas: the specification's, and the official client's.

`openapi` is the Open Responses document. `inventory` lists what the official client's types say: for
`ResponseStreamEvent`, `ResponseOutputItem`, `Tool` and `Response`, each type's fields with `required`
and the Python annotation. A type is held against both where both know it, and is a violation where
neither does. Item and tool types that the specification's unions do not know (`mcp_call`, …) are held
against the inventory and set aside before the specification is asked.

Shapes only: order and agreement are `stream_validator`'s.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import jsonschema_rs

JSONObject: TypeAlias = dict[str, Any]

_LITERALS = re.compile(r"'([^']*)'")
_MIXED = re.compile(r"\b(str|int|float|bool|List|Literal|Dict|NoneType|Optional)\b")
_CLASSES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "object": (object,),
}
_KNOWN_CHOICES = frozenset({"function", "allowed_tools"})
_MOST_ERRORS = 5


class SchemaValidator:
    """Both schemas, compiled once. Each method gives a list of violations, empty when all is well."""

    def __init__(self, openapi: Mapping[str, Any], inventory: Mapping[str, Any]) -> None:
        self._schemas: JSONObject = openapi["components"]["schemas"]
        self._components = openapi["components"]
        self._inventory = inventory
        self._events = {
            _type_of(schema): self._compile(name)
            for name, schema in self._schemas.items()
            if name.endswith("StreamingEvent")
        }
        self._response = self._compile("ResponseResource")
        self._json_format = self._compile("JsonSchemaResponseFormatParam")
        self._item_types = self._types_in("ItemField")
        self._tool_types = self._types_in("Tool")

    def event(self, event: Mapping[str, Any]) -> list[str]:
        """What is wrong with the shape of one stream event."""
        kind = event.get("type")
        fields = self._inventory["ResponseStreamEvent"].get(kind)
        if kind not in self._events and fields is None:
            return [f"event type {kind!r} is known to neither schema"]
        found = [] if fields is None else list(_check_fields(event, fields["fields"], str(kind)))
        return found + list(self._check_event(dict(event)))

    def response(self, response: Mapping[str, Any]) -> list[str]:
        """What is wrong with the shape of a Response object."""
        return [
            *_check_fields(response, self._inventory["Response"], "response"),
            *self._check_foreign(response),
            *_errors_of(self._response, self._native(response), "response"),
        ]

    def item(self, item: Any, label: str = "item") -> list[str]:
        """What is wrong with the shape of an output item by the client's inventory."""
        kind = item.get("type") if isinstance(item, Mapping) else None
        known = self._inventory["ResponseOutputItem"].get(kind)
        if known is None:
            return [] if kind in self._item_types else [f"{label}: type {kind!r} is known to neither schema"]
        return list(_check_fields(item, known["fields"], label))

    def _check_event(self, event: JSONObject) -> Iterator[str]:
        label = str(event["type"])
        if isinstance(event.get("response"), Mapping):
            yield from _check_fields(event["response"], self._inventory["Response"], label)
            yield from self._check_foreign(event["response"])
            event["response"] = self._native(event["response"])
        if "item" in event:
            yield from self.item(event["item"], f"{label}.item")
            if not self._is_native(event["item"], self._item_types):
                event["item"] = None  # the specification allows null here; the item was checked above
        if label in self._events:
            yield from _errors_of(self._events[label], event, label)

    def _check_foreign(self, response: Mapping[str, Any]) -> Iterator[str]:
        for index, item in enumerate(response.get("output") or ()):
            yield from self.item(item, f"output[{index}]")
        for index, tool in enumerate(response.get("tools") or ()):
            if self._is_native(tool, self._tool_types):
                continue
            kind = tool.get("type") if isinstance(tool, Mapping) else None
            known = self._inventory["Tool"].get(kind)
            if known is None:
                yield f"tools[{index}]: type {kind!r} is known to neither schema"
            else:
                yield from _check_fields(tool, known["fields"], f"tools[{index}]")
        if (json_format := _json_format_of(response)) is not None:
            yield from _errors_of(self._json_format, json_format, "text.format")

    def _native(self, response: Mapping[str, Any]) -> JSONObject:
        """The response without what the specification's unions do not know."""
        native = dict(response)
        for key, types in (("output", self._item_types), ("tools", self._tool_types)):
            if isinstance(native.get(key), list):
                native[key] = [each for each in native[key] if self._is_native(each, types)]
        choice = native.get("tool_choice")
        if isinstance(choice, Mapping) and choice.get("type") not in _KNOWN_CHOICES:
            native["tool_choice"] = "auto"
        if _json_format_of(response) is not None:
            native["text"] = {**response["text"], "format": {"type": "text"}}
        return native

    @staticmethod
    def _is_native(value: Any, types: frozenset[str]) -> bool:
        return isinstance(value, Mapping) and value.get("type") in types

    def _types_in(self, union: str) -> frozenset[str]:
        names = [each["$ref"].rpartition("/")[2] for each in self._schemas[union]["oneOf"]]
        return frozenset(_type_of(self._schemas[name]) for name in names)

    def _compile(self, name: str) -> jsonschema_rs.Validator:
        document = {"$ref": f"#/components/schemas/{name}", "components": self._components}
        return jsonschema_rs.validator_for(document)


def _json_format_of(response: Mapping[str, Any]) -> JSONObject | None:
    """An echoed format of type `json_schema`.

    The specification's own type for it allows no schema but null, so it is held against the type that
    requests have.
    """
    text = response.get("text")
    text_format = text.get("format") if isinstance(text, Mapping) else None
    is_json = isinstance(text_format, Mapping) and text_format.get("type") == "json_schema"
    return text_format if is_json else None


def _type_of(schema: Mapping[str, Any]) -> str:
    return str(schema["properties"]["type"]["enum"][0])


def _errors_of(validator: jsonschema_rs.Validator, value: Any, label: str) -> Iterator[str]:
    for count, error in enumerate(validator.iter_errors(value)):
        if count == _MOST_ERRORS:
            return
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
        yield f"{label}{place}: {error.message[:200]}"


def _check_fields(value: Mapping[str, Any], fields: Mapping[str, Any], label: str) -> Iterator[str]:
    for name, field in fields.items():
        if name not in value:
            if field["required"]:
                yield f"{label}.{name} is missing"
        elif not _fits(value[name], field["type"]):
            yield f"{label}.{name} is {value[name]!r:.80}, the client expects {field['type']:.80}"


def _fits(value: Any, annotation: str) -> bool:
    """Whether a JSON value fits a Python annotation, as far as its outermost part tells.

    Long annotations are cut off in the inventory, so a union is only held to what can be read of it.
    """
    head, _, inner = annotation.partition("[")
    match head:
        case "Optional":
            return value is None or _fits(value, inner)
        case "Annotated":
            return _fits(value, inner.partition(", PropertyInfo(")[0])
        case "Literal":
            cut_off = "]" not in inner
            return value in _LITERALS.findall(inner) or (cut_off and isinstance(value, str))
        case "List":
            return isinstance(value, list)
        case "Dict":
            return isinstance(value, dict)
        case "Union":
            # Of classes alone: an object. With anything else in it, or cut off, it cannot be told.
            of_classes = "]" in inner and _MIXED.search(inner) is None
            return isinstance(value, dict) or not of_classes
        case _:
            return _fits_class(value, annotation)


def _fits_class(value: Any, annotation: str) -> bool:
    named = re.match(r"<class '(\w+)'>|(\w+)", annotation)
    name = "" if named is None else named[1] or named[2]
    kinds = _CLASSES.get(name, (dict,))
    return isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds or object in kinds)
