"""A Python signature, read as a JSON Schema for a model and as a plan for the call.

Types mean what they mean to msgspec: builtins, `Literal`, enums, unions, `Annotated` with
`msgspec.Meta`, dataclasses, Structs, TypedDicts, dates, UUIDs. A parameter without an annotation takes
any JSON value. Descriptions come from the docstring (Google, NumPy and reStructuredText styles).
What cannot be expressed is a `ConfigurationError` when the tool is made, never a surprise at a call.
"""

import inspect
import typing
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import docstring_parser
import msgspec

from antiphon.domain.errors import ConfigurationError, ToolInvalidArgumentsError
from antiphon.tools.context import ToolContext

_KEYWORD_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_NO_EXTRAS = {"additionalProperties": False}


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """How a function is described to a model and how its arguments are made.

    `parameters` is the JSON Schema (type object), `types` the annotation of each parameter that the
    model may give, `takes_context` whether the first parameter is a `ToolContext`.
    """

    description: str
    parameters: dict[str, Any]
    types: dict[str, Any]
    takes_context: bool

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments of the annotated types, from JSON values that fit the schema."""
        converted = {}
        for name, value in arguments.items():
            try:
                converted[name] = msgspec.convert(value, self.types[name], str_keys=True)
            except msgspec.ValidationError as error:
                raise ToolInvalidArgumentsError(_with_path_first(name, str(error))) from error
        return converted


def read_signature(function: Callable[..., Any]) -> Signature:
    """The signature of a function that is to be a tool; raises `ConfigurationError`."""
    label = getattr(function, "__qualname__", repr(function))
    parameters = list(_signature_of(function, label).parameters.values())
    hints = _hints_of(function, label)
    takes_context = bool(parameters) and _is_context(parameters[0], hints)
    if takes_context:
        del parameters[0]
    for parameter in parameters:
        _refuse_inexpressible(parameter, hints, label)
    types = {parameter.name: _type_of(parameter, hints) for parameter in parameters}
    description, parameter_descriptions = _docstring_of(function)
    return Signature(
        description=description,
        parameters=_schema_of(parameters, types, parameter_descriptions, label),
        types=types,
        takes_context=takes_context,
    )


def _signature_of(function: Callable[..., Any], label: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{label} cannot be a tool: it has no signature ({error})") from error


def _hints_of(function: Callable[..., Any], label: str) -> dict[str, Any]:
    """Resolved annotations of the parameters; what stands behind `->` is nobody's concern here."""
    source = inspect.unwrap(function)
    source = getattr(source, "func", source)  # functools.partial
    if not hasattr(source, "__annotations__"):
        source = type(source).__call__
    annotations = {name: hint for name, hint in source.__annotations__.items() if name != "return"}
    try:
        return typing.get_type_hints(
            SimpleNamespace(__annotations__=annotations),
            globalns=getattr(source, "__globals__", {}),
            include_extras=True,
        )
    except Exception as error:
        raise ConfigurationError(
            f"an annotation of tool {label} cannot be resolved: {error}",
            hint="types used in annotations must be importable at module level",
        ) from error


def _is_context(parameter: inspect.Parameter, hints: dict[str, Any]) -> bool:
    hint = hints.get(parameter.name, inspect.Parameter.empty)
    return hint is ToolContext or (hint is inspect.Parameter.empty and parameter.name == "ctx")


def _refuse_inexpressible(parameter: inspect.Parameter, hints: dict[str, Any], label: str) -> None:
    if parameter.kind not in _KEYWORD_KINDS:
        kind = parameter.kind.description
        raise ConfigurationError(
            f"parameter {str(parameter)!r} of tool {label} cannot be expressed: it is {kind}",
            hint="a model gives its arguments by name; use named parameters, or one dict",
        )
    if hints.get(parameter.name) is ToolContext:
        raise ConfigurationError(
            f"parameter {parameter.name!r} of tool {label}: a ToolContext must be the first parameter"
        )
    if parameter.name in {"self", "cls"} and parameter.name not in hints:
        raise ConfigurationError(
            f"{label} is a method that is not bound to an object",
            hint="hand the bound method to FunctionToolExecutor, or FunctionTool.of(object.method)",
        )


def _type_of(parameter: inspect.Parameter, hints: dict[str, Any]) -> Any:
    hint = hints.get(parameter.name, Any)
    # `text: str = None` is commonly written and commonly meant.
    return hint | None if parameter.default is None and hint is not Any else hint


def _schema_of(
    parameters: list[inspect.Parameter], types: dict[str, Any], descriptions: dict[str, str], label: str
) -> dict[str, Any]:
    properties, definitions = _json_schemas(types, label)
    for parameter in parameters:
        described = properties[parameter.name]
        if parameter.name in descriptions:
            described.setdefault("description", descriptions[parameter.name])
        if parameter.default is not inspect.Parameter.empty:
            _add_default(described, parameter.default)
    schema: dict[str, Any] = {"type": "object", "properties": properties, **_NO_EXTRAS}
    required = [p.name for p in parameters if p.default is inspect.Parameter.empty]
    if required:
        schema["required"] = required
    if definitions:
        schema["$defs"] = definitions
    return schema


def _json_schemas(types: dict[str, Any], label: str) -> tuple[dict[str, Any], dict[str, Any]]:
    for name, kind in types.items():
        try:
            msgspec.json.schema(kind)
        except Exception as error:
            raise ConfigurationError(
                f"parameter {name!r} of tool {label} cannot be expressed as JSON: {error}"
            ) from error
    schemas, definitions = msgspec.json.schema_components(types.values(), ref_template="#/$defs/{name}")
    for definition in definitions.values():
        if "properties" in definition:
            definition.setdefault("additionalProperties", False)
    return dict(zip(types, schemas, strict=True)), definitions


def _add_default(schema: dict[str, Any], default: Any) -> None:
    try:
        schema.setdefault("default", msgspec.to_builtins(default, str_keys=True))
    except (TypeError, ValueError):
        return  # a default that is not JSON is the function's own affair: the model need not know it


def _docstring_of(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    text = inspect.getdoc(getattr(function, "func", function)) or ""
    try:
        parsed = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return text, {}
    paragraphs = [parsed.short_description, parsed.long_description]
    described = {param.arg_name: param.description for param in parsed.params if param.description}
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph), described


def _with_path_first(name: str, message: str) -> str:
    """Msgspec says ``Expected `int` - at `$.a` ``; a complaint begins with the place."""
    complaint, _, place = message.partition(" - at `$")
    return f"$.{name}{place.rstrip('`')}: {complaint}"
