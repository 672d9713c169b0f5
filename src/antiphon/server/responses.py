"""`/v1/responses` and what hangs below it."""

import asyncio
from collections.abc import Mapping
from typing import cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response as HTTPResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.domain.errors import Error, InvalidRequestError, ServerStoppingError
from antiphon.domain.requests import Arrival
from antiphon.domain.responses import STATUSES
from antiphon.engine.active import Finished
from antiphon.engine.engine import Engine
from antiphon.engine.handle import ResponseHandle
from antiphon.engine.tool_choice import refuse_unknown
from antiphon.server.body import read_body
from antiphon.server.border import send_answer
from antiphon.server.errors import Answer, answer_to, answer_to_failure
from antiphon.server.options import ServerOptions
from antiphon.server.queries import flag, integer, one_of
from antiphon.server.stream import EventStream
from antiphon.server.views import items_page, responses_page, steps_list
from antiphon.store.protocol import DEFAULT_PROJECT, Order

encode = msgspec.json.encode

LONGEST_KEY = 255


class ResponsesRoutes:
    """The endpoints, bound to an engine."""

    def __init__(self, engine: Engine, options: ServerOptions) -> None:
        self._engine = engine
        self._options = options

    async def create(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`POST /v1/responses`: JSON, an event stream, or a background response."""
        http = Request(scope, receive)
        body = await read_body(http, self._options.max_body_bytes)
        request = self._engine.read(body.wire)
        if self._options.unknown_tools == "reject":
            refuse_unknown(request.tools)
        handle = await self._engine.submit(request, _arrival(http.headers, body.digest))
        try:
            if request.stream:
                await handle.admitted()
                stream = EventStream(handle, after=-1, keepalive_s=self._options.keepalive_s)
                await stream(scope, receive, send)
            elif request.background:
                await handle.admitted()
                await send_answer(send, Answer(200, await handle.snapshot(), _named(handle)))
                handle.delivered()
            else:
                await self._foreground(handle, receive, send)
        finally:
            handle.leave()

    async def _foreground(self, handle: ResponseHandle, receive: Receive, send: Send) -> None:
        """Wait for the end, as long as the client does."""
        with handle.reading():
            ending = asyncio.ensure_future(handle.result())
            gone = asyncio.ensure_future(receive())
            try:
                await asyncio.wait({ending, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not ending.done():
                    return
                finished = _result_of(ending, handle)
                if isinstance(finished, Answer):
                    answer = finished
                elif finished.status == "failed" and finished.error is not None:
                    answer = answer_to_failure(finished.error)
                    answer = Answer(answer.status, answer.body, (*answer.headers, *_named(handle)))
                else:
                    answer = Answer(200, finished.body, _named(handle))
                await send_answer(send, answer)
                if not gone.done():
                    handle.delivered()
            finally:
                ending.cancel()
                gone.cancel()

    async def retrieve(self, request: Request) -> ASGIApp:
        """`GET /v1/responses/{id}`, as JSON or as a stream from a cursor."""
        response_id = request.path_params["response_id"]
        if flag(request, "stream"):
            handle = await self._engine.handle(response_id, _arrival(request.headers, ""))
            after = integer(request, "starting_after", default=-1, least=-1)
            return cast("ASGIApp", EventStream(handle, after=after, keepalive_s=self._options.keepalive_s))
        if "starting_after" in request.query_params:
            raise InvalidRequestError(
                "starting_after needs stream=true.", param="starting_after", code="invalid_parameter"
            )
        return _json(await self._engine.retrieve(response_id, DEFAULT_PROJECT))

    async def delete(self, request: Request) -> HTTPResponse:
        """`DELETE /v1/responses/{id}`."""
        response_id = request.path_params["response_id"]
        await self._engine.delete(response_id, DEFAULT_PROJECT)
        return _json(encode({"id": response_id, "object": "response", "deleted": True}))

    async def cancel(self, request: Request) -> HTTPResponse:
        """`POST /v1/responses/{id}/cancel`."""
        return _json(await self._engine.cancel(request.path_params["response_id"], DEFAULT_PROJECT))

    async def input_items(self, request: Request) -> HTTPResponse:
        """`GET /v1/responses/{id}/input_items`."""
        page = await self._engine.input_items(
            request.path_params["response_id"],
            DEFAULT_PROJECT,
            limit=integer(request, "limit", default=20, least=1, most=100),
            after=request.query_params.get("after"),
            order=cast("Order", one_of(request, "order", ("asc", "desc"), default="desc")),
        )
        return _json(items_page(page))

    async def list(self, request: Request) -> HTTPResponse:
        """`GET /v1/responses`."""
        status = one_of(request, "status", ("", *sorted(STATUSES)), default="")
        page = await self._engine.list_responses(
            DEFAULT_PROJECT,
            limit=integer(request, "limit", default=20, least=1, most=100),
            after=request.query_params.get("after"),
            order=cast("Order", one_of(request, "order", ("asc", "desc"), default="desc")),
            status=status or None,
            prefix=request.query_params.get("prefix"),
        )
        return _json(responses_page(page))

    async def steps(self, request: Request) -> HTTPResponse:
        """`GET /v1/responses/{id}/steps`: the tree of steps, as a list."""
        rows = await self._engine.steps(request.path_params["response_id"], DEFAULT_PROJECT)
        return _json(steps_list(rows))


def _result_of(ending: "asyncio.Future[Finished]", handle: ResponseHandle) -> Finished | Answer:
    """The end of a response, or the answer that tells why this process cannot say how it ended."""
    try:
        return ending.result()
    except ServerStoppingError:
        raise  # a retry finds the response in the next process
    except Error as error:
        return answer_to(error, admitted=handle.is_admitted)


def _arrival(headers: Mapping[str, str], digest: str) -> Arrival:
    key = headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= LONGEST_KEY:
        raise InvalidRequestError(
            f"An Idempotency-Key has 1 to {LONGEST_KEY} characters.", param="Idempotency-Key"
        )
    retries = headers.get("x-stainless-retry-count", "0")
    return Arrival(
        project=DEFAULT_PROJECT,
        body_digest=digest,
        idempotency_key=key,
        retry_count=int(retries[:9]) if retries.isascii() and retries.isdigit() else 0,
        use_server_tools=headers.get("x-antiphon-tools") != "none",
        inline_resets=headers.get("x-antiphon-resets") == "inline",
    )


def _named(handle: ResponseHandle) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"x-antiphon-response-id", handle.response_id.encode()),)


def _json(body: bytes) -> HTTPResponse:
    return HTTPResponse(body, media_type="application/json")
