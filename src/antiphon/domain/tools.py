"""Tools, as values: what they are called, what they accept, and what may be done with them after a crash."""

from enum import StrEnum
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


class ToolKind(StrEnum):
    """How a tool acts."""

    FUNCTION = "function"
    HTTP = "http"
    MCP = "mcp"
    AGENT = "agent"


class ToolEffect(StrEnum):
    """What running a tool twice would mean.

    `pure`: nothing changes, run it as often as you like. `idempotent`: the same idempotency key has
    one effect. `once`: never call it again when it is not known whether the first call happened.
    """

    PURE = "pure"
    IDEMPOTENT = "idempotent"
    ONCE = "once"


class ToolSchema(msgspec.Struct, frozen=True, kw_only=True):
    """What the model is told of a tool, and what the loop must know of it.

    `parameters` is a JSON Schema of type object. For `kind=agent`, `agent` holds
    `{"model", "instructions", "tools"}`: the inside of its scope. The default effect is `once`.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool = False
    kind: ToolKind = ToolKind.FUNCTION
    effect: ToolEffect = ToolEffect.ONCE
    server_label: str = "antiphon"
    timeout_s: float | None = None
    retries: int = 0
    max_concurrency: int | None = None
    agent: dict[str, Any] | None = None

    def as_function_tool(self) -> dict[str, Any]:
        """The Responses function tool that a model is offered."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict,
        }


class ToolCall(msgspec.Struct, frozen=True):
    """One call that a model asked for. `id` is the item's, `call_id` pairs it with its result."""

    id: str
    call_id: str
    name: str
    arguments: str


class ToolResult(msgspec.Struct, frozen=True):
    """What a call gave: text for the model.

    `failed` says that the tool did not do what it was asked; `error_code` then says how (`ToolError.code`).
    """

    call_id: str
    output: str
    failed: bool = False
    error_code: str | None = None


class RequestContext:
    """What the embedding program wants its tools to see: a model name and a type-keyed map.

    Never travels over HTTP and is never written down; `Engine(context_factory=…)` makes it again
    whenever a run is claimed. Values are immutable: `with_*` returns a new context.
    """

    __slots__ = ("extensions", "model")

    def __init__(self, model: str | None = None, extensions: dict[type, Any] | None = None) -> None:
        self.model = model
        self.extensions: dict[type, Any] = dict(extensions or {})

    def with_model(self, name: str) -> "RequestContext":
        """The same context for another model."""
        return RequestContext(name, self.extensions)

    def with_extension(self, value: object) -> "RequestContext":
        """The same context, knowing `value` under its type."""
        return RequestContext(self.model, {**self.extensions, type(value): value})

    def extension(self, kind: type[T]) -> T | None:
        """The value of this type, or None."""
        value = self.extensions.get(kind)
        return value if isinstance(value, kind) else None
