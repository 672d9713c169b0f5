"""Which server answers for a model name.

`Router` is an `InferenceClient` made of others. A name is looked up as an alias, then under `*`, which
passes it through. Where a route has several upstreams the next one is asked when one fails in a way
that another may not, as long as nothing of an answer has been passed on.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Protocol, runtime_checkable

import msgspec

from antiphon.domain.errors import ConfigurationError, InferenceError, InvalidRequestError
from antiphon.domain.inference import InferenceEvent, InferenceRequest
from antiphon.upstream.protocol import InferenceClient

ANY_MODEL = "*"


class ModelRoute(msgspec.Struct, frozen=True):
    """Where an alias leads: upstreams in order of preference, the model's name there, and bound tools.

    Without `model` the name that was asked for is used. `tools` names the tools that requests for this
    alias get; None leaves that to the server's defaults.
    """

    upstreams: tuple[str, ...]
    model: str | None = None
    tools: tuple[str, ...] | None = None


@runtime_checkable
class _ListsModels(Protocol):
    async def models(self) -> list[str]: ...


@runtime_checkable
class _Closes(Protocol):
    async def close(self) -> None: ...


class Router:
    """Model aliases over named clients. Raises `ConfigurationError` for routes that lead nowhere."""

    def __init__(self, clients: Mapping[str, InferenceClient], routes: Mapping[str, ModelRoute]) -> None:
        for alias, route in routes.items():
            unknown = [name for name in route.upstreams if name not in clients]
            if unknown or not route.upstreams:
                raise ConfigurationError(
                    f"The route {alias!r} names {', '.join(map(repr, unknown)) or 'no upstream'}.",
                    hint=f"Upstreams are: {', '.join(clients) or 'none'}.",
                )
        self._clients = dict(clients)
        self._routes = dict(routes)

    def call(self, request: InferenceRequest) -> AsyncIterator[InferenceEvent]:
        """The answer of the server that the model's name leads to, as `InferenceClient.call`.

        Raises `InvalidRequestError` for a name that leads nowhere.
        """
        route = self.route(request.model)
        if route.model is not None and route.model != request.model:
            request = msgspec.structs.replace(request, model=route.model)
        if len(route.upstreams) == 1:
            return self._clients[route.upstreams[0]].call(request)
        return self._call_in_turn(route, request)

    def knows(self, model: str) -> bool:
        """Whether a request for this name can be routed."""
        return model in self._routes or ANY_MODEL in self._routes

    def route(self, model: str) -> ModelRoute:
        """The route of this name. Raises `InvalidRequestError` (`model_not_found`)."""
        route = self._routes.get(model) or self._routes.get(ANY_MODEL)
        if route is None:
            known = ", ".join(self._routes) or "none"
            raise InvalidRequestError(
                f"The model {model!r} does not exist here. Known models: {known}.",
                code="model_not_found",
                param="model",
                hint="Ask GET /v1/models which models there are.",
            )
        return route

    async def models(self) -> list[str]:
        """Aliases, and with `*` what its upstreams list; those that do not answer are left out."""
        names = [alias for alias in self._routes if alias != ANY_MODEL]
        passing = self._routes.get(ANY_MODEL)
        if passing is not None:
            async with asyncio.TaskGroup() as tasks:
                listings = [tasks.create_task(self._listed(name)) for name in passing.upstreams]
            names.extend(name for listing in listings for name in listing.result())
        return list(dict.fromkeys(names))

    async def close(self) -> None:
        """Close every client that can be closed."""
        for client in {id(client): client for client in self._clients.values()}.values():
            if isinstance(client, _Closes):
                await client.close()

    async def _listed(self, upstream: str) -> list[str]:
        client = self._clients[upstream]
        if not isinstance(client, _ListsModels):
            return []
        try:
            return await client.models()
        except InferenceError:
            return []

    async def _call_in_turn(
        self, route: ModelRoute, request: InferenceRequest
    ) -> AsyncIterator[InferenceEvent]:
        *others, last = route.upstreams
        for upstream in others:
            events = self._clients[upstream].call(request)
            has_begun = False
            try:
                async for event in events:
                    has_begun = True
                    yield event
                return
            except InferenceError as error:
                if has_begun or not _may_differ_elsewhere(error, route):
                    raise
            finally:
                await _close(events)
        events = self._clients[last].call(request)
        try:
            async for event in events:
                yield event
        finally:
            await _close(events)


def _may_differ_elsewhere(error: InferenceError, route: ModelRoute) -> bool:
    """Transient failures; and where names are passed through, not knowing the model."""
    return error.retryable or (route.model is None and error.code == "model_not_found")


async def _close(events: AsyncIterator[InferenceEvent]) -> None:
    """Close the iterator, and with it its connection, where it can be closed."""
    aclose = getattr(events, "aclose", None)
    if aclose is not None:
        await aclose()
