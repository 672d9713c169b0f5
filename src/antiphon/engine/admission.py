"""Admission: from a checked request to a run that is about to be written.

Everything that can be refused is refused here, before anything leaves: the model is unknown, the turn
before does not exist, calls and outputs do not pair. What passes is frozen: the request, and the tools with
their names, kinds and effects.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from antiphon.core.input_items import check_pairs
from antiphon.domain.errors import ConflictError, InvalidRequestError
from antiphon.domain.inference import Item
from antiphon.domain.requests import Arrival, FrozenRequest, ResponseRequest
from antiphon.domain.responses import ENDED_STATUSES
from antiphon.domain.tools import RequestContext, ToolSchema
from antiphon.engine.parts import Parts
from antiphon.engine.tool_choice import SERVER_LABEL, held_to, is_offered
from antiphon.observe.logs import get_logger
from antiphon.upstream.routing import ModelRoute

log = get_logger("antiphon.admission")


class Admitted(msgspec.Struct, frozen=True):
    """A request that may run: frozen, with its input items and everything before them."""

    frozen: FrozenRequest
    input_items: tuple[Item, ...]
    context: tuple[dict[str, Any], ...]

    @property
    def requires(self) -> tuple[str, ...]:
        """What a process must know to drive it."""
        tools = (f"tool:{schema.name}" for schema in self.frozen.server_tools)
        return (f"model:{self.frozen.request.model}", *tools)


async def admit(
    parts: Parts, request: ResponseRequest, arrival: Arrival, context: RequestContext
) -> Admitted:
    """Check a request against what is stored and configured; raises `RequestError`."""
    route = _route_of(parts, request.model)
    schemas = await _server_tools(parts, request, arrival, route, context)
    client_tools = tuple(tool for tool in request.tools if tool["type"] == "function")
    unknown = [f"tools: {tool['type']}" for tool in request.tools if not is_offered(tool)]
    offered = {schema.name for schema in schemas} | {tool["name"] for tool in client_tools}
    choice, left_out = held_to(request.tool_choice, offered)
    ignored = [*request.ignored, *unknown, *left_out]
    history = await _history(parts, request, arrival.project)
    items = await _resolved(parts, request.input, arrival.project)
    whole = (*history, *(item.data for item in items))
    check_pairs(whole)
    frozen = FrozenRequest(
        request=msgspec.structs.replace(request, input=(), tool_choice=choice),
        created_at=parts.clock(),
        server_tools=tuple(schemas),
        client_tools=client_tools,
        warnings=tuple(f"ignored: {name}" for name in ignored),
    )
    if ignored:
        log.info("request_parts_ignored", parts=ignored)
    return Admitted(frozen, items, whole)


def _route_of(parts: Parts, model: str) -> ModelRoute | None:
    """The route of a model alias, when the upstream has routes; `InvalidRequestError` for an unknown one."""
    route = getattr(parts.inference, "route", None)
    return None if route is None else route(model)


async def _server_tools(
    parts: Parts,
    request: ResponseRequest,
    arrival: Arrival,
    route: ModelRoute | None,
    context: RequestContext,
) -> list[ToolSchema]:
    """The tools that we run for this request: the model's, narrowed by the request, less the client's own."""
    if not arrival.use_server_tools:
        return []
    offered = await parts.tools.tools(context)
    if route is not None and route.tools is not None:
        offered = [schema for schema in offered if schema.name in route.tools]
    for tool in request.tools:
        if tool["type"] == "mcp" and tool.get("server_label") == SERVER_LABEL:
            offered = _narrowed(offered, tool.get("allowed_tools"))
    clients = {tool["name"] for tool in request.tools if tool["type"] == "function"}
    for schema in offered:
        if schema.name in clients:
            log.info("client_tool_wins", tool=schema.name)
    return [schema for schema in offered if schema.name not in clients]


def _narrowed(offered: Sequence[ToolSchema], allowed: Any) -> list[ToolSchema]:
    names = allowed.get("tool_names") if isinstance(allowed, Mapping) else allowed
    return list(offered) if names is None else [schema for schema in offered if schema.name in names]


async def _history(parts: Parts, request: ResponseRequest, project: str) -> list[dict[str, Any]]:
    previous = request.previous_response_id
    if previous is None:
        return []
    history = await parts.store.history(project, previous)
    if history is None:
        raise InvalidRequestError(
            f"Previous response with id '{previous}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    if history.last.status not in ENDED_STATUSES:
        raise ConflictError(
            f"The previous response '{previous}' is still {history.last.status}.",
            param="previous_response_id",
            code="previous_response_in_progress",
            hint="Wait for its end, or cancel it.",
        )
    return [msgspec.json.decode(item.data) for item in history.items]


async def _resolved(parts: Parts, items: Sequence[Item], project: str) -> tuple[Item, ...]:
    """The items, references replaced by what they refer to."""
    wanted = [item.id for item in items if item.data["type"] == "item_reference"]
    if not wanted:
        return tuple(items)
    found = {item.id: item for item in await parts.store.get_items(wanted, project=project)}
    for place, item in enumerate(items):
        if item.data["type"] == "item_reference" and item.id not in found:
            raise InvalidRequestError(
                f"Item with id '{item.id}' not found.", param=f"input[{place}].id", code="item_not_found"
            )
    return tuple(found.get(i.id, i) if i.data["type"] == "item_reference" else i for i in items)
