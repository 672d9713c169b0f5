"""One call, from the text that a model wrote to the text that it reads.

The one place where a tool's failure becomes a result: whatever an executor raises, the model hears of it.
"""

from typing import Any

import msgspec

from antiphon.domain.errors import ToolError, ToolExecutionError, ToolInvalidArgumentsError
from antiphon.domain.tools import RequestContext, ToolCall, ToolResult
from antiphon.tools.context import current_attempt
from antiphon.tools.protocol import ToolExecutor

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


async def dispatch_call(
    tools: ToolExecutor, call: ToolCall, context: RequestContext, *, key: str, attempt: int = 0
) -> ToolResult:
    """Run one call through an executor. `key` is the idempotency key, the same for every attempt."""
    token = current_attempt.set(attempt)
    try:
        arguments = parse_arguments(call.arguments)
        output = text_of(await tools.execute(call.name, key, arguments, context))
    except ToolError as error:
        return ToolResult(call.call_id, text_of(str(error)), failed=True, error_code=error.code)
    except Exception as error:  # noqa: BLE001 - a foreign executor may raise anything; the model hears of it
        failure = ToolExecutionError(f"{type(error).__name__}: {error}")
        return ToolResult(call.call_id, text_of(str(failure)), failed=True, error_code=failure.code)
    finally:
        current_attempt.reset(token)
    return ToolResult(call.call_id, output)


def parse_arguments(text: str) -> dict[str, Any]:
    """The arguments of a call, from the JSON text that a model wrote; nothing at all means none.

    Raises `ToolInvalidArgumentsError` with the position of what is not JSON.
    """
    if not text.strip():
        return {}
    try:
        arguments = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ToolInvalidArgumentsError(f"$: not valid JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise ToolInvalidArgumentsError(f"$: expected an object, got {_json_type(arguments)}")
    return arguments


def text_of(result: Any) -> str:
    """What the model reads of a result: text as it is, other values as compact JSON.

    NUL characters, which many stores and model servers cannot carry, are replaced, and a last line
    says how many they were. What is not Unicode (lone surrogates) becomes `?`.
    """
    text = result if isinstance(result, str) else msgspec.json.encode(result).decode()
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    count = text.count("\0")
    if count == 0:
        return text
    were = "NUL character was" if count == 1 else "NUL characters were"
    return text.replace("\0", _REPLACEMENT) + f"\n[antiphon: {count} {were} replaced]"


def _json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case _:
            return "an array"
