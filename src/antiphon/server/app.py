"""The ASGI application.

`create_app(engine)` starts and stops the engine in its lifespan. Mounted in another application, whose
lifespan does not reach it, enter the engine yourself: an engine that runs already is left alone.
"""

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.engine.engine import Engine
from antiphon.server.border import Border
from antiphon.server.operations import OperationsRoutes
from antiphon.server.options import ServerOptions
from antiphon.server.responses import ResponsesRoutes


def create_app(engine: Engine, options: ServerOptions | None = None) -> ASGIApp:
    """The HTTP side of an engine, as an ASGI application to run or to mount."""
    options = options or ServerOptions()
    responses = ResponsesRoutes(engine, options)
    operations = OperationsRoutes(engine)
    one = "/v1/responses/{response_id}"
    routes = [
        Route("/v1/responses", _Raw(responses.create), methods=["POST"]),
        Route("/v1/responses", responses.list, methods=["GET"]),
        Route(one, responses.retrieve, methods=["GET"]),
        Route(one, responses.delete, methods=["DELETE"]),
        Route(one + "/cancel", responses.cancel, methods=["POST"]),
        Route(one + "/input_items", responses.input_items, methods=["GET"]),
        Route(one + "/steps", responses.steps, methods=["GET"]),
        Route("/v1/models", operations.models, methods=["GET"]),
        Route("/v1/models/{name:path}", operations.model, methods=["GET"]),
        Route("/health", operations.health, methods=["GET"]),
        Route("/readyz", operations.ready, methods=["GET"]),
        Route("/metrics", operations.metrics, methods=["GET"]),
    ]

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        if engine.is_running:
            yield
            return
        async with engine:
            yield

    inner = Starlette(routes=routes, lifespan=lifespan)
    inner.router.redirect_slashes = False
    return Border(_WithoutHandlers(inner), options.api_keys)


class _Raw:
    """An endpoint that is an ASGI application itself."""

    def __init__(self, endpoint: ASGIApp) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoint(scope, receive, send)


class _WithoutHandlers:
    """Starlette's router and lifespan without its error pages: the border answers."""

    def __init__(self, app: Starlette) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self._app  # by this the router knows to raise rather than to answer
        await self._app.router(scope, receive, send)
