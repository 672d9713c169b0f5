"""Codex opens a WebSocket first when it is allowed to. There is none here, and 426 sends it to HTTP."""

import json

import pytest

from antiphon import Engine, create_app
from antiphon.testing import FakeUpstream
from serving import serving

pytestmark = pytest.mark.anyio

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "x3JJHMbDL1EzLkh9GBhXDw==",
    "OpenAI-Beta": "responses_websockets=2026-02-06",
}


async def refused(**extensions):
    """What the application sends to an ASGI server that hands it a WebSocket."""
    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    async with FakeUpstream() as upstream:
        app = create_app(Engine(store="memory:", upstream=upstream.url + "/v1"))
        scope = {"type": "websocket", "path": "/v1/responses", "headers": [], "extensions": extensions}
        await app(scope, receive, send)
    return sent


async def test_over_a_server_that_knows_none():
    """Such a server hands the attempt over as a plain request, its header still there."""
    async with serving() as s:
        answer = await s.get("/v1/responses", headers=UPGRADE)
        listed = await s.get("/v1/responses")
    assert (answer.status, answer.error["code"]) == (426, "websocket_not_available")
    assert listed.status == 200


async def test_as_a_scope_with_a_response():
    """A server with the extension sends our answer."""
    start, body = await refused(**{"websocket.http.response": {}})
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 426)
    assert json.loads(body["body"])["error"]["code"] == "websocket_not_available"


async def test_as_a_scope_without_one():
    """Any other server is asked to close, and answers with a refusal of its own."""
    assert await refused() == [{"type": "websocket.close"}]
