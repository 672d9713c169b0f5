"""Clients of the demo's server: they post requests, follow streams, and come back after a cut.

Every wait is bounded: a server that accepts a connection and then says nothing is found out.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec

from antiphon.core.sse import SseSplitter
from antiphon.demo.failure import DemoFailed
from antiphon.domain.events import TERMINAL_TYPES

JSONObject = dict[str, Any]

PROGRESS_S = 8.0
"""The longest silence between two events; the demo's model never needs as long."""

_OK = 200


class Cut(Exception):  # noqa: N818 - it happens to the reader on purpose
    """The connection ended before the response did."""


class Reader:
    """Follows one response over as many connections as it takes, and keeps every event that it saw.

    `connections` holds the events of each connection; `on_event` is told of each event as it comes.
    """

    def __init__(
        self, session: aiohttp.ClientSession, on_event: Callable[[JSONObject], None] = lambda _event: None
    ) -> None:
        self.connections: list[list[JSONObject]] = []
        self._session = session
        self._on_event = on_event

    @property
    def events(self) -> list[JSONObject]:
        """Every event, over all connections, in the order of arrival."""
        return [event for connection in self.connections for event in connection]

    @property
    def response_id(self) -> str:
        """The response's id, known from its first event on."""
        return str(self.events[0]["response"]["id"])

    @property
    def cursor(self) -> int:
        """The number of the last event that was seen."""
        return int(self.events[-1]["sequence_number"])

    @property
    def has_ended(self) -> bool:
        """Whether the event that ends the stream was seen."""
        return any(event["type"] in TERMINAL_TYPES for event in self.events[-1:])

    async def create(self, url: str, request: JSONObject) -> None:
        """POST a request and follow its stream to the end. Raises `Cut` when the connection breaks."""
        await self._follow("POST", f"{url}/v1/responses", json={**request, "stream": True})

    async def come_back(self, url: str) -> None:
        """Go on behind the last event that was seen."""
        query = {"stream": "true", "starting_after": str(self.cursor)}
        await self._follow("GET", f"{url}/v1/responses/{self.response_id}", params=query)

    async def replay(self, url: str, response_id: str) -> None:
        """The whole log of a response, from its first event."""
        await self._follow("GET", f"{url}/v1/responses/{response_id}", params={"stream": "true"})

    async def _follow(self, method: str, url: str, **options: Any) -> None:
        self.connections.append([])
        try:
            async with (
                asyncio.timeout(PROGRESS_S) as deadline,
                self._session.request(method, url, **options) as answer,
            ):
                if answer.status != _OK:
                    raise DemoFailed(f"{method} {url} was answered {answer.status}: {await answer.text()}")
                splitter = SseSplitter()
                async for chunk in answer.content.iter_any():
                    for data in splitter.feed(chunk):
                        deadline.reschedule(asyncio.get_running_loop().time() + PROGRESS_S)
                        self._take(data)
        except TimeoutError as error:
            raise DemoFailed(
                f"nothing came for {PROGRESS_S:.0f} s after event {self.cursor if self.events else 'none'}: "
                "the response does not go on."
            ) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Cut(str(error)) from error
        if not self.has_ended:
            raise Cut("the stream ended without its last event")

    def _take(self, data: bytes) -> None:
        if data != b"[DONE]":
            event = msgspec.json.decode(data)
            self.connections[-1].append(event)
            self._on_event(event)


async def get_json(session: aiohttp.ClientSession, url: str) -> JSONObject:
    """The JSON object at an address."""
    async with asyncio.timeout(PROGRESS_S), session.get(url) as answer:
        if answer.status != _OK:
            raise DemoFailed(f"GET {url} was answered {answer.status}: {await answer.text()}")
        found: JSONObject = msgspec.json.decode(await answer.read())
        return found
