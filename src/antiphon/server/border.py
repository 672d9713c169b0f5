"""The border: every request passes here once.

Gives it an id, checks its key, and turns whatever goes wrong inside into an answer of the wire's form.
"""

import hmac
from hashlib import sha256

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.domain.errors import AuthenticationError, Error, MethodNotAllowedError, NotFoundError
from antiphon.engine.context import new_id
from antiphon.observe import metrics
from antiphon.observe.logs import get_logger
from antiphon.server import websocket
from antiphon.server.errors import Answer, answer_to

log = get_logger("antiphon.server")

OPEN_PATHS = frozenset({"/health", "/readyz", "/metrics"})
JSON_TYPE = (b"content-type", b"application/json")


class Border:
    """An ASGI application around ours."""

    def __init__(self, app: ASGIApp, api_keys: tuple[str, ...]) -> None:
        self._app = app
        self._digests = [sha256(key.encode()).digest() for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        request_id = new_id("req")
        scope.setdefault("state", {})["request_id"] = request_id
        id_header = (b"x-request-id", request_id.encode())
        if scope["type"] == "websocket":
            await websocket.refuse(scope, receive, send, id_header)
            return
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                metrics.REQUESTS.labels(str(message["status"])).inc()
                message["headers"] = [*message.get("headers", ()), id_header]
            await send(message)

        try:
            self._check_key(scope)
            websocket.check_no_upgrade(scope)
            await self._app(scope, receive, send_with_id)
        except Error as error:
            if started:
                raise
            await send_answer(send_with_id, answer_to(error))
        except HTTPException as error:
            await send_answer(send_with_id, _answer_to_router(error, scope))
        except Exception as error:
            log.exception("request_failed", request_id=request_id, path=scope["path"])
            if started:
                raise
            message = f"The server failed ({type(error).__name__}); its log has the request id {request_id}."
            await send_answer(send_with_id, answer_to(Error(message)))

    def _check_key(self, scope: Scope) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))  # mounted under a prefix, or not
        if not self._digests or path in OPEN_PATHS:
            return
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        if not given:
            raise AuthenticationError(
                "An API key is needed: send 'Authorization: Bearer KEY'.", code="no_api_key"
            )
        digest = sha256(key.strip()).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if scheme.lower() != b"bearer" or not any(matches):
            raise AuthenticationError("This API key is not known here.")


def _answer_to_router(error: HTTPException, scope: Scope) -> Answer:
    if error.status_code != MethodNotAllowedError.http_status:
        nothing = f"There is nothing at {scope['path']}."
        return answer_to(NotFoundError(nothing, hint="See /v1/responses and /v1/models."))
    answer = answer_to(MethodNotAllowedError(f"{scope['method']} is not possible on {scope['path']}."))
    allowed = (b"allow", (error.headers or {}).get("Allow", "").encode())
    return Answer(answer.status, answer.body, (*answer.headers, allowed))


async def send_answer(send: Send, answer: Answer) -> None:
    """Send a whole answer."""
    length = (b"content-length", str(len(answer.body)).encode())
    headers = [JSON_TYPE, length, *answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
