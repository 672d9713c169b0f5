"""What operators and load balancers ask: health, readiness, metrics, models."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response as HTTPResponse

from antiphon.domain.errors import Error, NotFoundError
from antiphon.engine.engine import Engine
from antiphon.observe import metrics

encode = msgspec.json.encode


class OperationsRoutes:
    """The endpoints, bound to an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def health(self, _request: Request) -> HTTPResponse:
        """`GET /health`: the process answers."""
        return _json({"status": "ok"})

    async def ready(self, _request: Request) -> HTTPResponse:
        """`GET /readyz`: the store can be written; 503 when it cannot."""
        try:
            store = await self._engine.store.check()
            store.pop("path", None)  # asked without a key
            stalled = self._engine.parts.committer.unavailable_since is not None
        except Error as error:
            return _json({"status": "not ready", "reason": str(error)}, status=503)
        if stalled:
            return _json({"status": "not ready", "reason": "the store cannot be written"}, status=503)
        return _json({"status": "ready", "store": store, "unclaimable": self._engine.unclaimable})

    async def metrics(self, _request: Request) -> HTTPResponse:
        """`GET /metrics`."""
        return HTTPResponse(metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(self, _request: Request) -> HTTPResponse:
        """`GET /v1/models`."""
        names = await self._engine.models()
        return _json({"object": "list", "data": [_model(name) for name in names]})

    async def model(self, request: Request) -> HTTPResponse:
        """`GET /v1/models/{name}`."""
        name = request.path_params["name"]
        if name not in await self._engine.models():
            raise NotFoundError(f"The model '{name}' does not exist.", param="model", code="model_not_found")
        return _json(_model(name))


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "antiphon"}


def _json(value: object, status: int = 200) -> HTTPResponse:
    return HTTPResponse(encode(value), status_code=status, media_type="application/json")
