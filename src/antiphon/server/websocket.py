"""The WebSocket that clients open on `/v1/responses`: there is none here, and 426 tells them so at once.

Depending on the ASGI server and what is installed beside it, the attempt arrives as a request with an
`Upgrade` header or as a scope of its own. Clients go on over HTTP after a 426; after any other answer
they try again, several times.
"""

from starlette.types import Receive, Scope, Send

from antiphon.domain.errors import UpgradeRequiredError
from antiphon.server.errors import Answer, answer_to

_RESPONSE_EXTENSION = "websocket.http.response"


def check_no_upgrade(scope: Scope) -> None:
    """Raise `UpgradeRequiredError` for a request that wants to become a WebSocket."""
    upgrade = next((value for name, value in scope["headers"] if name == b"upgrade"), b"")
    if upgrade.lower() == b"websocket":
        raise _none_here()


async def refuse(scope: Scope, receive: Receive, send: Send, *more: tuple[bytes, bytes]) -> None:
    """Refuse the handshake: with 426 where the server lets us say so, else with its own refusal."""
    await receive()
    if _RESPONSE_EXTENSION not in scope.get("extensions", {}):
        await send({"type": "websocket.close"})
        return
    answer = answer_to(_none_here())
    headers = [(b"content-type", b"application/json"), *_length(answer), *answer.headers, *more]
    await send({"type": f"{_RESPONSE_EXTENSION}.start", "status": answer.status, "headers": headers})
    await send({"type": f"{_RESPONSE_EXTENSION}.body", "body": answer.body})


def _length(answer: Answer) -> list[tuple[bytes, bytes]]:
    return [(b"content-length", str(len(answer.body)).encode())]


def _none_here() -> UpgradeRequiredError:
    return UpgradeRequiredError(
        "There is no WebSocket in this version.", hint="Send POST /v1/responses with stream: true."
    )
