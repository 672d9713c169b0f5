"""Input items: every form that clients send, brought to one.

A string becomes a user message; items without `type` become messages; plain `content` becomes parts;
missing ids are made. What comes out is what is stored, listed, and read back as history.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from antiphon.domain.errors import InvalidRequestError
from antiphon.domain.inference import Item

NewId = Callable[[str], str]
JSONObject = dict[str, Any]

MAX_TEXT_BYTES = 10 * 1024 * 1024
MAX_IMAGE_URL_BYTES = 20 * 1024 * 1024
MAX_FILE_BYTES = 32 * 1024 * 1024
_MOST_BYTES_PER_CHARACTER = 4

ROLES = ("user", "assistant", "system", "developer")

ID_PREFIX = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "compaction": "cmp",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
}

REQUIRED = {
    "function_call": ("call_id", "name", "arguments"),
    "custom_tool_call": ("call_id", "name", "input"),
    "function_call_output": ("call_id",),
    "custom_tool_call_output": ("call_id",),
    "mcp_call": ("name", "arguments"),
    "mcp_approval_response": ("approval_request_id",),
    "item_reference": ("id",),
}

OUTPUT_OF = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}


def read_items(given: str | Sequence[JSONObject] | None, new_id: NewId) -> tuple[Item, ...]:
    """Whole items, each with an id, in order. Raises `InvalidRequestError` with the JSON path."""
    if given is None:
        return ()
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    _check_text_size(given)
    return tuple(_read(item, f"input[{place}]", new_id) for place, item in enumerate(given))


def _read(item: JSONObject, path: str, new_id: NewId) -> Item:
    kind = item.get("type", "message" if "role" in item else None)
    if not isinstance(kind, str):
        raise InvalidRequestError(
            "An input item needs 'type', or 'role' and 'content'.", param=f"{path}.type"
        )
    for key in REQUIRED.get(kind, ()):
        if not isinstance(item.get(key), str):
            raise InvalidRequestError(
                f"An item of type {kind} needs '{key}', a string.", param=f"{path}.{key}", code="invalid_type"
            )
    whole = {key: value for key, value in item.items() if not (key in {"status", "id"} and value is None)}
    whole["type"] = kind
    if kind == "item_reference":
        return Item(whole["id"], whole)
    item_id = whole.get("id") or new_id(ID_PREFIX.get(kind, "item"))
    if not isinstance(item_id, str):
        raise InvalidRequestError("An item's id is a string.", param=f"{path}.id", code="invalid_type")
    whole = {**whole, "id": item_id}
    if kind == "message":
        whole["role"] = _role(whole, path)
        whole["content"] = _parts(whole.get("content"), whole["role"], f"{path}.content")
    elif kind in OUTPUT_OF:
        whole["output"] = _output(whole, path)
    if kind in {"message", "function_call", *OUTPUT_OF}:
        whole.setdefault("status", "completed")
    return Item(item_id, whole)


def _role(item: JSONObject, path: str) -> str:
    role = item.get("role")
    if role not in ROLES:
        raise InvalidRequestError(
            f"Unknown role {role!r}; known are {', '.join(ROLES)}.",
            param=f"{path}.role",
            code="invalid_value",
        )
    return str(role)


def _parts(content: Any, role: str, path: str) -> list[JSONObject]:
    if isinstance(content, str):
        if role == "assistant":
            return [{"type": "output_text", "text": content, "annotations": []}]
        return [{"type": "input_text", "text": content}]
    if not isinstance(content, list):
        raise InvalidRequestError(
            "A message's content is a string or a list of parts.", param=path, code="invalid_type"
        )
    for place, part in enumerate(content):
        _check_part(part, f"{path}[{place}]")
    return content


def _check_part(part: Any, path: str) -> None:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise InvalidRequestError(
            "A content part is an object with a 'type'.", param=path, code="invalid_type"
        )
    kind = part["type"]
    if kind in {"input_text", "output_text", "text"} and not isinstance(part.get("text"), str):
        raise InvalidRequestError(f"A part of type {kind} needs 'text', a string.", param=f"{path}.text")
    if kind == "input_image" and not part.get("image_url"):
        raise InvalidRequestError(
            "A part of type input_image needs 'image_url': stored files cannot be shown to a model here.",
            param=f"{path}.image_url",
            code="unsupported_content",
            hint="Send the image as an https or data URL.",
        )
    _check_size(part.get("image_url"), MAX_IMAGE_URL_BYTES, f"{path}.image_url", "image_too_large")
    _check_size(part.get("file_data"), MAX_FILE_BYTES, f"{path}.file_data", "file_too_large")


def _check_size(value: Any, most: int, path: str, code: str) -> None:
    if isinstance(value, str) and len(value) > most:
        raise InvalidRequestError(
            f"At most {most // (1024 * 1024)} MiB are allowed here.", param=path, code=code
        )


def _output(item: JSONObject, path: str) -> str | list[JSONObject]:
    output = item.get("output")
    if isinstance(output, str):
        return output
    if isinstance(output, list):
        for place, part in enumerate(output):
            _check_part(part, f"{path}.output[{place}]")
        return output
    raise InvalidRequestError(
        "A call's output is a string or a list of parts.", param=f"{path}.output", code="invalid_type"
    )


def _check_text_size(items: Sequence[JSONObject]) -> None:
    """All text of the input together; images and files have limits of their own."""
    if (
        sum(len(text) for item in items for text in _texts(item)) * _MOST_BYTES_PER_CHARACTER
        <= MAX_TEXT_BYTES
    ):
        return  # however it is encoded
    total = sum(len(text.encode(errors="replace")) for item in items for text in _texts(item))
    if total > MAX_TEXT_BYTES:
        raise InvalidRequestError(
            f"The input holds {total} bytes of text; at most {MAX_TEXT_BYTES} are allowed.",
            param="input",
            code="string_above_max_length",
            hint="Send less, or keep the text in a tool that the model can ask.",
        )


def _texts(item: JSONObject) -> Iterable[str]:
    for key in ("content", "output", "arguments", "input"):
        value = item.get(key)
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from (p["text"] for p in value if isinstance(p, dict) and isinstance(p.get("text"), str))


def check_pairs(items: Iterable[JSONObject]) -> None:
    """Every output has its call before it, and every call of the client has its output.

    A call that was cut off (`incomplete`) needs none: nobody can run half a call. `items` is the whole
    context of the turn, in order.
    """
    open_calls: dict[str, None] = {}
    seen: set[str] = set()
    for item in items:
        kind = item["type"]
        if kind in {"function_call", "custom_tool_call"}:
            if item.get("status") != "incomplete":
                open_calls[item["call_id"]] = None
            seen.add(item["call_id"])
        elif kind in OUTPUT_OF:
            call_id = item["call_id"]
            if call_id not in seen:
                raise InvalidRequestError(
                    f"No tool call found for function call output with call_id {call_id}.",
                    param="input",
                    code="unknown_call_id",
                )
            open_calls.pop(call_id, None)
    if open_calls:
        call_id = next(iter(open_calls))
        raise InvalidRequestError(
            f"No tool output found for function call {call_id}.", param="input", code="missing_tool_output"
        )
