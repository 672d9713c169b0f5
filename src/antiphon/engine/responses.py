"""`engine.responses`: the API for people, with the official client's method names and shapes."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Literal, overload

import msgspec

from antiphon.domain.events import Event
from antiphon.domain.requests import Arrival
from antiphon.domain.responses import Response
from antiphon.domain.tools import RequestContext
from antiphon.store.protocol import Order

if TYPE_CHECKING:
    from antiphon.engine.engine import Engine


class InputItems:
    """`engine.responses.input_items`."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    async def list(
        self, response_id: str, *, limit: int = 20, after: str | None = None, order: Order = "desc"
    ) -> list[dict[str, Any]]:
        """One page of the input items of a response, as JSON objects; `NotFoundError` when it is unknown."""
        page = await self._engine.input_items(response_id, limit=limit, after=after, order=order)
        return [msgspec.json.decode(item.data) for item in page.items]


class Responses:
    """Create, retrieve, follow, cancel and delete responses."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self.input_items = InputItems(engine)

    @overload
    async def create(
        self, *, stream: Literal[True], context: RequestContext | None = None, **parameters: Any
    ) -> AsyncIterator[Event]: ...
    @overload
    async def create(
        self, *, stream: Literal[False] = False, context: RequestContext | None = None, **parameters: Any
    ) -> Response: ...
    async def create(
        self, *, stream: bool = False, context: RequestContext | None = None, **parameters: Any
    ) -> Response | AsyncIterator[Event]:
        """Create a response; the parameters are those of `POST /v1/responses`.

        Without `stream` the response at its end (with `background=True` as it stands at once); its
        `status` says how it ended, failures included. With `stream` its events, each durable before
        it is seen. Raises `InvalidRequestError` with the JSON path in `param`, `RateLimitError`,
        `StoreUnavailableError`. `context` is seen by tools.
        """
        request = self._engine.read({**parameters, "stream": stream})
        handle = await self._engine.submit(request, Arrival(), context)
        if stream:
            await handle.admitted()
            return _events(handle.frames())
        if request.background:
            handle.leave()
            await handle.admitted()
            return _response(await handle.snapshot())
        with handle.reading():
            return _response((await handle.result()).body)

    @overload
    async def retrieve(
        self, response_id: str, *, stream: Literal[True], starting_after: int = -1
    ) -> AsyncIterator[Event]: ...
    @overload
    async def retrieve(
        self, response_id: str, *, stream: Literal[False] = False, starting_after: int = -1
    ) -> Response: ...
    async def retrieve(
        self, response_id: str, *, stream: bool = False, starting_after: int = -1
    ) -> Response | AsyncIterator[Event]:
        """The response as it stands; with `stream` its events after the cursor, then live ones."""
        if stream:
            handle = await self._engine.handle(response_id, Arrival())
            return _events(handle.frames(starting_after))
        return _response(await self._engine.retrieve(response_id))

    async def cancel(self, response_id: str) -> Response:
        """Cancel; the response as it then stands. Idempotent."""
        return _response(await self._engine.cancel(response_id))

    async def delete(self, response_id: str) -> None:
        """Cancel what runs, and delete."""
        await self._engine.delete(response_id)


def _response(body: bytes) -> Response:
    return Response.from_dict(msgspec.json.decode(body))


async def _events(frames: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    async for several in frames:
        for frame in several.split(b"\n\n")[:-1]:
            data = frame.partition(b"\ndata: ")[2]
            told = msgspec.json.decode(data, type=_Told)
            yield Event(told.sequence_number, told.type, data)


class _Told(msgspec.Struct):
    type: str
    sequence_number: int
