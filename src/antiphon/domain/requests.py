"""Requests: as decoded from the wire, and as frozen when a run is admitted."""

from typing import Any

import msgspec

from antiphon.domain.inference import Item
from antiphon.domain.tools import ToolSchema


class ResponseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/responses`, checked and normalised; nothing of it depends on stored state.

    `input` are whole items with ids (item references still unresolved). `params` are the parameters of
    a model call that are passed on. `ignored` names what the request asked for and we do not do.
    """

    model: str
    input: tuple[Item, ...] = ()
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool = False
    background: bool = False
    store: bool = True
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: Any = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    include: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_logprobs: int | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    truncation: str = "disabled"
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    ignored: tuple[str, ...] = ()


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """How a request came in: whose it is, and how its client may find it again.

    `body_digest` is the SHA-256 of the body as sent; `retry_count` what an official client says of
    itself (`x-stainless-retry-count`); `use_server_tools` is false for `x-antiphon-tools: none`.
    """

    project: str = "default"
    body_digest: str = ""
    idempotency_key: str | None = None
    retry_count: int = 0
    use_server_tools: bool = True
    inline_resets: bool = False


class FrozenRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run works from, fixed at admission, and all that a recovery needs besides the chain.

    The input items are not in here: they are stored once, as items of the response.
    `server_tools` are run by us, `client_tools` belong to the client.
    """

    request: ResponseRequest
    created_at: float
    server_tools: tuple[ToolSchema, ...] = ()
    client_tools: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def client_names(self) -> frozenset[str]:
        """The names of the client's own functions."""
        return frozenset(str(tool.get("name")) for tool in self.client_tools)
