"""Reading a request: from a JSON object to a checked `ResponseRequest`.

Every refusal is an `InvalidRequestError` whose `param` is the JSON path. What we do not know is not
refused but named in `ignored` (WIRE: "Input"). Limits are data (`MAX_…`).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec

from antiphon.core.input_items import read_items
from antiphon.domain.errors import InvalidRequestError
from antiphon.domain.requests import ResponseRequest

NewId = Callable[[str], str]

MAX_METADATA_PAIRS = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
MOST = 2**31
FUNCTION_NAME = r"^[a-zA-Z0-9_-]{1,64}\Z"

_Name = Annotated[str, msgspec.Meta(pattern=FUNCTION_NAME)]
_Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]


class _Wire(msgspec.Struct, kw_only=True):
    """The parameters that we act on, with their wire types. Null means: not given."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    stream: bool | None = None
    background: bool | None = None
    store: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=16, le=MOST)] | None = None
    max_tool_calls: Annotated[int, msgspec.Meta(ge=1, le=MOST)] | None = None
    metadata: dict[str, Any] | None = None
    include: list[str] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: _Probability | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    stream_options: dict[str, Any] | None = None


class _FunctionTool(msgspec.Struct, kw_only=True):
    type: Literal["function"]
    name: _Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _TextFormat(msgspec.Struct, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    name: _Name | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class _ToolChoice(msgspec.Struct, kw_only=True):
    type: str
    name: str | None = None
    server_label: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[dict[str, Any]] | None = None


HONOURED = frozenset(_Wire.__struct_fields__)
KNOWN_INCLUDES = frozenset({"message.output_text.logprobs"})


def read_request(wire: Any, new_id: NewId) -> ResponseRequest:
    """A checked request from the JSON object of `POST /v1/responses`."""
    if not isinstance(wire, dict):
        raise InvalidRequestError("The body must be a JSON object.", hint="Send {'model': …, 'input': …}.")
    _refuse_nul(wire)
    given = convert_at(wire, _Wire, "")
    if given.model is None:
        raise InvalidRequestError(
            "Missing required parameter: 'model'.", param="model", code="missing_parameter"
        )
    if given.conversation is not None:
        raise InvalidRequestError(
            "Conversations are not available in this version; chain turns with previous_response_id.",
            param="conversation",
            code="unsupported_parameter",
        )
    if given.background and given.store is False:
        raise InvalidRequestError(
            "background: true needs store: true.", param="background", code="invalid_parameter"
        )
    _check_metadata(given.metadata or {})
    if given.text is not None and given.text.get("format") is not None:
        _check_format(given.text["format"])
    tools = tuple(given.tools or ())
    _check_tools(tools)
    _check_choice(given.tool_choice)
    return ResponseRequest(
        model=given.model,
        input=read_items(given.input, new_id),
        instructions=given.instructions,
        previous_response_id=given.previous_response_id,
        stream=bool(given.stream),
        background=bool(given.background),
        store=given.store is not False,
        tools=tools,
        tool_choice="auto" if given.tool_choice is None else given.tool_choice,
        parallel_tool_calls=given.parallel_tool_calls is not False,
        max_output_tokens=given.max_output_tokens,
        max_tool_calls=given.max_tool_calls,
        metadata=given.metadata or {},
        include=tuple(given.include or ()),
        temperature=given.temperature,
        top_p=given.top_p,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
        top_logprobs=given.top_logprobs,
        text=given.text,
        reasoning=given.reasoning,
        truncation=given.truncation or "disabled",
        service_tier=given.service_tier,
        safety_identifier=given.safety_identifier,
        prompt_cache_key=given.prompt_cache_key,
        user=given.user,
        ignored=tuple(_ignored(wire, given)),
    )


def convert_at(value: Any, to: type, path: str) -> Any:
    """`msgspec.convert`, its error turned into ours with the path below `path`."""
    try:
        return msgspec.convert(value, to)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        param = (path + where.rstrip("`")).lstrip(".")
        raise InvalidRequestError(
            f"Invalid value for '{param or 'body'}': {message}.", param=param or None, code="invalid_type"
        ) from None


def _check_metadata(pairs: Mapping[str, Any]) -> None:
    if len(pairs) > MAX_METADATA_PAIRS:
        raise InvalidRequestError(
            f"At most {MAX_METADATA_PAIRS} metadata pairs are allowed.", param="metadata"
        )
    for key, value in pairs.items():
        if len(key) > MAX_METADATA_KEY:
            raise InvalidRequestError(
                f"A metadata key has at most {MAX_METADATA_KEY} characters.", param=f"metadata.{key}"
            )
        if not isinstance(value, str) or len(value) > MAX_METADATA_VALUE:
            raise InvalidRequestError(
                f"A metadata value is a string of at most {MAX_METADATA_VALUE} characters.",
                param=f"metadata.{key}",
                code="invalid_type",
            )


def _check_tools(tools: tuple[dict[str, Any], ...]) -> None:
    names: set[str] = set()
    for place, tool in enumerate(tools):
        if not isinstance(tool.get("type"), str):
            raise InvalidRequestError(
                "A tool needs a 'type'.", param=f"tools[{place}].type", code="invalid_type"
            )
        if tool["type"] != "function":
            continue
        name = convert_at(tool, _FunctionTool, f"tools[{place}]").name
        if name in names:
            raise InvalidRequestError(
                f"Two tools are called {name!r}; names must be unique.", param=f"tools[{place}].name"
            )
        names.add(name)


def _check_format(text_format: Any) -> None:
    checked = convert_at(text_format, _TextFormat, "text.format")
    if checked.type != "json_schema":
        return
    for key in ("name", "schema"):
        if getattr(checked, key) is None:
            raise InvalidRequestError(
                f"text.format of type json_schema needs '{key}'.", param=f"text.format.{key}"
            )


def _check_choice(choice: Any) -> None:
    if not isinstance(choice, dict):
        return
    checked = convert_at(choice, _ToolChoice, "tool_choice")
    if checked.type == "function" and not checked.name:
        raise InvalidRequestError("tool_choice of type function needs 'name'.", param="tool_choice.name")
    if checked.type == "allowed_tools" and not checked.tools:
        raise InvalidRequestError(
            "tool_choice of type allowed_tools needs 'tools'.", param="tool_choice.tools"
        )


def _ignored(wire: Mapping[str, Any], given: _Wire) -> Iterator[str]:
    for key, value in wire.items():
        if key not in HONOURED and value is not None:
            yield key
    if given.truncation == "auto":
        yield "truncation: auto"
    for include in given.include or ():
        if include not in KNOWN_INCLUDES:
            yield f"include: {include}"


def _refuse_nul(value: Any, path: str = "") -> None:
    """NUL cannot be stored in text by most databases, and no prompt needs it."""
    match value:
        case str() if "\x00" in value:
            raise InvalidRequestError(
                "The text contains a NUL character (U+0000).",
                param=path or None,
                code="invalid_text",
                hint="Remove it; it has no meaning in a prompt.",
            )
        case dict():
            for key, inner in value.items():
                _refuse_nul(key, path)
                _refuse_nul(inner, f"{path}.{key}" if path else str(key))
        case list():
            for place, inner in enumerate(value):
                _refuse_nul(inner, f"{path}[{place}]")
        case _:
            return
