"""The Response object: what a client sees of a run."""

from typing import Any

import msgspec

from antiphon.domain.inference import Item
from antiphon.domain.usage import Usage

ENDED_STATUSES = frozenset({"completed", "incomplete", "failed", "cancelled"})
STATUSES = ENDED_STATUSES | {"queued", "in_progress"}


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response with the wire's fields (Open Responses, `ResponseResource`).

    `output` are items as JSON objects; `extra` holds what the wire carries beyond the named fields
    (`interruptions`, `warnings`, …). `input_items` is what the turn brought in; it is not on the wire.
    """

    id: str
    model: str
    status: str = "completed"
    output: list[dict[str, Any]] = msgspec.field(default_factory=list)
    object: str = "response"
    created_at: int = 0
    completed_at: int | None = None
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, Any] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    usage: Usage | None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tool_choice: Any = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_logprobs: int = 0
    truncation: str = "disabled"
    text: dict[str, Any] = msgspec.field(default_factory=lambda: {"format": {"type": "text"}})
    reasoning: dict[str, Any] | None = None
    store: bool = True
    background: bool = False
    service_tier: str = "default"
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    input_items: tuple[Item, ...] = ()

    @property
    def output_text(self) -> str:
        """All output text, joined."""
        return "".join(
            part["text"]
            for item in self.output
            if item.get("type") == "message"
            for part in item.get("content", ())
            if part.get("type") == "output_text"
        )

    @property
    def interruptions(self) -> list[Any]:
        """The questions that hold the response back."""
        return list(self.extra.get("interruptions") or ())

    def to_dict(self) -> dict[str, Any]:
        """The response as its JSON object on the wire."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        del wire["input_items"]
        wire.update(wire.pop("extra"))
        return wire

    @classmethod
    def from_dict(cls, wire: dict[str, Any]) -> "Response":
        """A response from its JSON object; keys that are not named go to `extra`."""
        known = {key: value for key, value in wire.items() if key in _WIRE_FIELDS}
        extra = {key: value for key, value in wire.items() if key not in _WIRE_FIELDS}
        return msgspec.convert({**known, "extra": extra}, cls)


_WIRE_FIELDS = frozenset(Response.__struct_fields__) - {"extra", "input_items"}
