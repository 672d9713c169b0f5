"""Signatures become JSON Schemas, and JSON values become the annotated types."""

import dataclasses
import functools
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

from antiphon.domain.errors import ConfigurationError, ToolInvalidArgumentsError
from antiphon.tools.context import ToolContext
from antiphon.tools.function import FunctionTool
from antiphon.tools.schema import read_signature


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Line:
    sku: str
    qty: int = 1


class Address(msgspec.Struct):
    city: str


class Options(TypedDict, total=False):
    gift: bool


def test_builtin_types_map_to_json_types():
    """Each builtin annotation gives the JSON type that carries it."""

    def f(
        *, a: str, b: int, c: float, d: bool, e: None, f: list[str], g: dict[str, int], h: tuple[int, str]
    ): ...

    schema = read_signature(f).parameters
    types = {name: sub.get("type") for name, sub in schema["properties"].items()}
    assert types == {
        "a": "string",
        "b": "integer",
        "c": "number",
        "d": "boolean",
        "e": "null",
        "f": "array",
        "g": "object",
        "h": "array",
    }
    assert schema["required"] == list("abcdefgh")
    assert schema["additionalProperties"] is False


def test_literals_enums_and_unions():
    """Closed choices reach the model as enums, optionals as a choice with null."""

    def f(a: Literal["x", "y"], b: Colour, c: int | None, d: int | str): ...

    properties = read_signature(f).parameters
    assert sorted(properties["properties"]["a"]["enum"]) == ["x", "y"]
    assert properties["$defs"]["Colour"]["enum"] == ["blue", "red"]
    assert properties["properties"]["c"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    assert {"type": "string"} in properties["properties"]["d"]["anyOf"]


def test_constraints_of_annotated_types():
    """`msgspec.Meta` constraints and descriptions are in the schema."""

    def f(n: Annotated[int, msgspec.Meta(ge=1, description="how many")]): ...

    assert read_signature(f).parameters["properties"]["n"] == {
        "type": "integer",
        "minimum": 1,
        "description": "how many",
    }


def test_nested_objects_are_closed_definitions():
    """Dataclasses, Structs and TypedDicts become definitions that allow nothing else."""

    def f(lines: list[Line], to: Address, options: Options): ...

    definitions = read_signature(f).parameters["$defs"]
    assert set(definitions) == {"Line", "Address", "Options"}
    assert all(definition["additionalProperties"] is False for definition in definitions.values())
    assert definitions["Line"]["required"] == ["sku"]


def test_defaults_are_told_and_not_required():
    """A parameter with a default is optional, and the model is told the default."""

    def f(a: str, b: int = 3, *, c: str = None): ...  # noqa: RUF013 - as people write it

    schema = read_signature(f).parameters
    assert schema["required"] == ["a"]
    assert schema["properties"]["b"] == {"type": "integer", "default": 3}
    assert {"type": "null"} in schema["properties"]["c"]["anyOf"]


def test_unannotated_parameters_take_any_json():
    """No annotation means no constraint."""

    def f(a, b=None): ...

    schema = read_signature(f).parameters
    assert schema["properties"] == {"a": {}, "b": {"default": None}}


def google(city: str, days: int = 1):
    """Forecast the weather.

    Uses the national service.

    Args:
        city: The city's name.
        days: How many days ahead.
    """


def numpy(city: str, days: int = 1):
    """Forecast the weather.

    Uses the national service.

    Parameters
    ----------
    city : str
        The city's name.
    days : int
        How many days ahead.
    """


def rest(city: str, days: int = 1):
    """Forecast the weather.

    Uses the national service.

    :param city: The city's name.
    :param days: How many days ahead.
    """


@pytest.mark.parametrize("function", [google, numpy, rest], ids=lambda f: f.__name__)
def test_docstring_styles(function):
    """Google, NumPy and reStructuredText docstrings describe the tool and its parameters."""
    signature = read_signature(function)
    assert signature.description == "Forecast the weather.\n\nUses the national service."
    properties = signature.parameters["properties"]
    assert properties["city"]["description"] == "The city's name."
    assert properties["days"]["description"] == "How many days ahead."


def test_the_context_is_not_in_the_schema():
    """A first parameter annotated ToolContext is ours to give, under any name."""

    def f(context: ToolContext, a: int): ...
    def g(ctx, a: int): ...

    for function in (f, g):
        signature = read_signature(function)
        assert signature.takes_context
        assert list(signature.parameters["properties"]) == ["a"]


def test_no_parameters():
    """A function without parameters has an empty, closed schema."""
    assert read_signature(lambda: None).parameters == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


def test_values_are_converted_to_the_annotated_types():
    """JSON values arrive as the types that the function asked for."""

    def f(lines: list[Line], colour: Colour, tags: set[str], counts: dict[int, int], price: float): ...

    given = {"lines": [{"sku": "a"}], "colour": "red", "tags": ["x", "x"], "counts": {"1": 2}, "price": 3}
    assert read_signature(f).convert(given) == {
        "lines": [Line("a", 1)],
        "colour": Colour.RED,
        "tags": {"x"},
        "counts": {1: 2},
        "price": 3.0,
    }


def test_conversion_errors_begin_with_the_path():
    """What fits the schema but not the type is named by its JSON path."""

    def f(lines: list[Line]): ...

    with pytest.raises(
        ToolInvalidArgumentsError, match=r"^Invalid arguments: \$\.lines\[0\]\.qty: Expected `int`"
    ):
        read_signature(f).convert({"lines": [{"sku": "a", "qty": "2"}]})


class Opaque:
    pass


def takes_var_args(*args: int): ...
def takes_var_keywords(**kwargs: int): ...
def takes_positional_only(a: int, /): ...
def takes_opaque(a: Opaque): ...
def takes_late_context(a: int, ctx: ToolContext): ...
def takes_unknown_name(a: "Nowhere"): ...  # noqa: F821 - that is the point
def takes_ambiguous_union(a: Line | Address): ...


class Holder:
    def method(self, a: int): ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (takes_var_args, r"'\*args: int' .* cannot be expressed"),
        (takes_var_keywords, r"'\*\*kwargs: int' .* cannot be expressed"),
        (takes_positional_only, "positional-only"),
        (takes_opaque, "'a' of tool takes_opaque cannot be expressed as JSON"),
        (takes_late_context, "must be the first parameter"),
        (takes_unknown_name, "cannot be resolved: name 'Nowhere'"),
        (takes_ambiguous_union, "'a' of tool takes_ambiguous_union cannot be expressed"),
        (Holder.method, "not bound"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_expressed_is_refused(function, words):
    """A signature that no model could call is a clear error when the tool is made."""
    with pytest.raises(ConfigurationError, match=words):
        read_signature(function)


def test_bound_methods_and_partials():
    """Callables other than functions can be tools too."""

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    assert list(FunctionTool.of(Holder().method).signature.types) == ["a"]
    partial = FunctionTool.of(functools.partial(add, b=2), name="add_two")
    assert partial.schema.description == "Add."
    assert partial.schema.parameters["required"] == ["a"]


def test_return_annotations_are_not_looked_at():
    """An unresolvable return annotation does not matter: nobody reads it."""

    def f(a: int) -> "Nowhere":  # noqa: F821
        return a

    assert read_signature(f).types == {"a": int}


def test_any_is_any():
    """`Any` takes every JSON value and converts nothing."""

    def f(a: Any): ...

    assert read_signature(f).convert({"a": [1, {"b": None}]}) == {"a": [1, {"b": None}]}
