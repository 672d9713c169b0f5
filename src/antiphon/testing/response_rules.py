"""The rules of a Response object and of its items, as tables, and what breaks them.

Which keys there are, of which type, which may be null, which statuses go with which other keys. Keys
beyond the tables are allowed; item and part types beyond them are not.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

JSONObject: TypeAlias = dict[str, Any]
Kinds: TypeAlias = tuple[type | None, ...]

NUMBER: Kinds = (int, float)

RESPONSE_KEYS: dict[str, Kinds] = {
    "id": (str,),
    "object": (str,),
    "created_at": (int,),
    "completed_at": (int, None),
    "status": (str,),
    "incomplete_details": (dict, None),
    "model": (str,),
    "previous_response_id": (str, None),
    "instructions": (str, None),
    "output": (list,),
    "error": (dict, None),
    "tools": (list,),
    "tool_choice": (str, dict),
    "truncation": (str,),
    "parallel_tool_calls": (bool,),
    "text": (dict,),
    "top_p": NUMBER,
    "presence_penalty": NUMBER,
    "frequency_penalty": NUMBER,
    "top_logprobs": (int,),
    "temperature": NUMBER,
    "reasoning": (dict, None),
    "usage": (dict, None),
    "max_output_tokens": (int, None),
    "max_tool_calls": (int, None),
    "store": (bool,),
    "background": (bool,),
    "service_tier": (str,),
    "metadata": (dict,),
    "safety_identifier": (str, None),
    "prompt_cache_key": (str, None),
}

STATUSES = frozenset({"queued", "in_progress", "completed", "incomplete", "failed", "cancelled"})
ENDED = frozenset({"completed", "incomplete", "failed", "cancelled"})

_PROGRESS = frozenset({"in_progress", "completed", "incomplete"})


class ItemRule(msgspec.Struct, frozen=True, kw_only=True):
    """One item type: its keys, those that may be left out, its statuses, and how it looks when it opens.

    `zero` are the values in `response.output_item.added`; `kept` are the keys that never change.
    """

    keys: dict[str, Kinds]
    optional: dict[str, Kinds] = msgspec.field(default_factory=dict)
    statuses: frozenset[str] = _PROGRESS
    zero: dict[str, Any] = msgspec.field(default_factory=dict)
    kept: tuple[str, ...] = ()


ITEM_RULES: dict[str, ItemRule] = {
    "message": ItemRule(
        keys={"status": (str,), "role": (str,), "content": (list,)},
        optional={"phase": (str,)},
        zero={"status": "in_progress", "content": []},
        kept=("role",),
    ),
    "reasoning": ItemRule(
        keys={"summary": (list,)},
        optional={"content": (list,), "encrypted_content": (str,), "status": (str,)},
        zero={"summary": [], "content": [], "status": "in_progress"},
    ),
    "function_call": ItemRule(
        keys={"call_id": (str,), "name": (str,), "arguments": (str,), "status": (str,)},
        zero={"arguments": "", "status": "in_progress"},
        kept=("call_id", "name"),
    ),
    "custom_tool_call": ItemRule(
        keys={"call_id": (str,), "name": (str,), "input": (str,)},
        optional={"status": (str,)},
        zero={"input": "", "status": "in_progress"},
        kept=("call_id", "name"),
    ),
    "mcp_call": ItemRule(
        keys={
            "server_label": (str,),
            "name": (str,),
            "arguments": (str,),
            "output": (str, None),
            "error": (dict, None),
            "status": (str,),
        },
        optional={"approval_request_id": (str, None)},
        statuses=_PROGRESS | {"calling", "failed"},
        zero={"arguments": "", "output": None, "error": None, "status": "in_progress"},
        kept=("server_label", "name"),
    ),
    "mcp_list_tools": ItemRule(
        keys={"server_label": (str,), "tools": (list,)},
        optional={"error": (str, None)},
        zero={"tools": []},
        kept=("server_label",),
    ),
    "mcp_approval_request": ItemRule(
        keys={"server_label": (str,), "name": (str,), "arguments": (str,)},
        kept=("server_label", "name"),
    ),
    "function_call_output": ItemRule(
        keys={"call_id": (str,), "output": (str, list), "status": (str,)}, kept=("call_id",)
    ),
    "compaction": ItemRule(keys={"encrypted_content": (str,)}),
}

NAMING_KEYS = ("id", "call_id", "name", "server_label")

PART_KEYS: dict[str, dict[str, Kinds]] = {
    "output_text": {"text": (str,), "annotations": (list,)},
    "refusal": {"refusal": (str,)},
    "reasoning_text": {"text": (str,)},
    "summary_text": {"text": (str,)},
}

_PART_OF = {"message": {"output_text", "refusal"}, "reasoning": {"reasoning_text"}}
_USAGE_KEYS = ("input_tokens", "output_tokens", "total_tokens")
_USAGE_DETAILS = {
    "input_tokens_details": ("cached_tokens", "cache_write_tokens"),
    "output_tokens_details": ("reasoning_tokens",),
}


def is_a(value: Any, kinds: Kinds) -> bool:
    """Whether a JSON value is of one of these types; `true` is no number."""
    if value is None:
        return None in kinds
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, tuple(kind for kind in kinds if kind is not None))


def check_response(response: Any) -> list[str]:
    """Everything that is wrong with a Response object, whatever its status."""
    if not isinstance(response, dict):
        return ["the response is not an object"]
    wrong = [*check_keys(response, RESPONSE_KEYS, "response")]
    if wrong:
        return wrong
    return [
        *_check_values(response),
        *_check_status(response),
        *_check_usage(response["usage"]),
        *_check_output(response),
    ]


def check_keys(value: Mapping[str, Any], keys: Mapping[str, Kinds], label: str) -> Iterator[str]:
    """Keys that are missing, null where null is not allowed, or of the wrong type."""
    for key, kinds in keys.items():
        if key not in value:
            yield f"{label}.{key} is missing"
        elif value[key] is None and None not in kinds:
            yield f"{label}.{key} is null"
        elif not is_a(value[key], kinds):
            yield f"{label}.{key} is of type {type(value[key]).__name__}"


def check_item(item: Any, label: str) -> Iterator[str]:
    """Everything that is wrong with an output item by itself, at any time of its life."""
    if not isinstance(item, dict):
        yield f"{label} is not an object"
        return
    rule = ITEM_RULES.get(str(item.get("type")))
    if rule is None:
        yield f"{label} is of the unknown type {item.get('type')!r}"
        return
    present = {key: kinds for key, kinds in rule.optional.items() if key in item}
    wrong = [*check_keys(item, {"id": (str,), **rule.keys, **present}, label)]
    yield from wrong
    if wrong:
        return
    for key in NAMING_KEYS:
        if item.get(key) == "":
            yield f"{label}.{key} is empty"
    if "status" in item and item["status"] not in rule.statuses:
        yield f"{label}.status is {item['status']!r}"
    yield from _check_contents(item, label)


def check_part(part: Any, label: str, allowed: set[str]) -> Iterator[str]:
    """Everything that is wrong with a content part."""
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in allowed:
        yield f"{label} is of type {kind!r}"
        return
    yield from check_keys(part, PART_KEYS[kind], label)
    if "logprobs" in part and not isinstance(part["logprobs"], list):
        yield f"{label}.logprobs is not a list: it is left out rather than null"


def _check_contents(item: JSONObject, label: str) -> Iterator[str]:
    kind = item["type"]
    if kind == "message" and item.get("role") != "assistant":
        yield f"{label}.role is {item.get('role')!r}"
    if kind in _PART_OF and isinstance(item.get("content"), list):
        for index, part in enumerate(item["content"]):
            yield from check_part(part, f"{label}.content[{index}]", _PART_OF[kind])
    if kind == "reasoning" and isinstance(item.get("summary"), list):
        for index, part in enumerate(item["summary"]):
            yield from check_part(part, f"{label}.summary[{index}]", {"summary_text"})
    if kind == "mcp_call":
        yield from _check_mcp_call(item, label)


def _check_mcp_call(item: JSONObject, label: str) -> Iterator[str]:
    error, status = item.get("error"), item.get("status")
    if isinstance(error, dict) and not isinstance(error.get("type"), str):
        yield f"{label}.error.type is missing"
    if status == "failed" and error is None:
        yield f"{label} has failed without an error"
    if status == "completed" and error is not None:
        yield f"{label} is completed and has an error"


def _check_values(response: JSONObject) -> Iterator[str]:
    if not response["id"]:
        yield "response.id is empty"
    if response["object"] != "response":
        yield f"response.object is {response['object']!r}"
    if response["truncation"] not in {"auto", "disabled"}:
        yield f"response.truncation is {response['truncation']!r}"
    if not all(isinstance(value, str) for value in response["metadata"].values()):
        yield "response.metadata has a value that is not a string"
    text = response["text"]
    if not isinstance(text.get("format"), dict) or not isinstance(text["format"].get("type"), str):
        yield "response.text.format is missing or null"
    if "verbosity" in text and text["verbosity"] is None:
        yield "response.text.verbosity is null: it is left out rather than null"
    if response["reasoning"] is not None:
        for key in ("effort", "summary"):
            if key not in response["reasoning"]:
                yield f"response.reasoning.{key} is missing"
    for index, tool in enumerate(response["tools"]):
        if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
            yield f"response.tools[{index}] has no type"


def _check_status(response: JSONObject) -> Iterator[str]:
    status = response["status"]
    if status not in STATUSES:
        yield f"response.status is {status!r}"
        return
    if status == "completed" and response["completed_at"] is None:
        yield "response.completed_at is null in a completed response"
    if response["completed_at"] is not None and response["completed_at"] < response["created_at"]:
        yield "response.completed_at is before created_at"
    if status not in ENDED and response["completed_at"] is not None:
        yield f"response.completed_at is set while {status}"
    yield from _check_error(response["error"], status)
    details = response["incomplete_details"]
    if (details is not None) != (status == "incomplete"):
        yield f"response.incomplete_details is {'null' if details is None else 'set'} while {status}"
    elif details is not None and not isinstance(details.get("reason"), str):
        yield "response.incomplete_details.reason is missing"


def _check_error(error: JSONObject | None, status: str) -> Iterator[str]:
    if error is None:
        if status == "failed":
            yield "response.error is null in a failed response"
        return
    if status not in {"failed", "cancelled"}:
        yield f"response.error is set while {status}"
    yield from check_keys(error, {"code": (str,), "message": (str,)}, "response.error")


def _check_usage(usage: JSONObject | None) -> Iterator[str]:
    if usage is None:
        return
    counts = dict.fromkeys(_USAGE_KEYS, (int,))
    wrong = [*check_keys(usage, {**counts, **dict.fromkeys(_USAGE_DETAILS, (dict,))}, "response.usage")]
    yield from wrong
    if wrong:
        return
    for key, names in _USAGE_DETAILS.items():
        yield from check_keys(usage[key], dict.fromkeys(names, (int,)), f"response.usage.{key}")
    if usage["total_tokens"] != usage["input_tokens"] + usage["output_tokens"]:
        yield "response.usage.total_tokens is not the sum of input and output"


def _check_output(response: JSONObject) -> Iterator[str]:
    output, status = response["output"], response["status"]
    wrong = [found for index, item in enumerate(output) for found in check_item(item, f"output[{index}]")]
    yield from wrong
    if wrong:
        return
    items: list[JSONObject] = output
    for key in ("id", "call_id"):
        values = [item[key] for item in items if key in item and item.get("type") != "function_call_output"]
        if len(values) != len(set(values)):
            yield f"two items of the output share an {key}"
    if status in ENDED:
        yield from _check_ended_items(items, response)


def _check_ended_items(items: list[JSONObject], response: JSONObject) -> Iterator[str]:
    status = response["status"]
    for index, item in enumerate(items):
        state = item.get("status")
        if state in {"in_progress", "calling"}:
            yield f"output[{index}] is {state} in a response that is {status}"
        if state == "incomplete" and status == "completed":
            yield f"output[{index}] is incomplete in a completed response"
        cut = state == "incomplete" and item.get("type") != "mcp_call"
        if cut and status == "incomplete" and index != len(items) - 1:
            yield f"output[{index}] is incomplete and is not the last item"
    reason = (response["incomplete_details"] or {}).get("reason")
    last = items[-1] if items else {}
    told_by_the_model = last.get("type") in {"message", "function_call"}
    if reason == "max_output_tokens" and told_by_the_model and last.get("status") != "incomplete":
        yield "the response was cut by max_output_tokens and its last item is not incomplete"
