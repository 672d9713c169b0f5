"""A reader that never gives up: keeps every frame it saw, and reconnects where it stopped.

Used to watch a response while servers are killed under it. What it kept is the evidence: the checker
holds it against the journal.
"""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from antiphon.core.sse import SseSplitter
from antiphon.domain.events import TERMINAL_TYPES

JSONObject = dict[str, Any]

_SILENCE_S = 60.0
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5


class Connection(msgspec.Struct, kw_only=True):
    """One attempt to read: from which cursor, what came, and how it ended.

    `status` is None when nothing answered. `ending` is `terminal`, `closed` (an end without a terminal
    event), `refused` (no 200), or the name of the error that broke the connection.
    """

    starting_after: int | None
    status: int | None = None
    events: list[JSONObject] = msgspec.field(default_factory=list)
    frames: list[bytes] = msgspec.field(default_factory=list)
    ending: str = ""


class RecordingReader:
    """Reads one response's events until its end; an async context manager around `create` and `read`.

    `base_url` is the server's root (`http://127.0.0.1:8080`). `starting_after` is the cursor to begin
    with, None for the whole log. Without a `response_id`, `create` posts the request and learns it.
    """

    def __init__(
        self,
        base_url: str,
        response_id: str | None = None,
        *,
        api_key: str | None = None,
        starting_after: int | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.response_id = response_id
        self.connections: list[Connection] = []
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._cursor = starting_after
        self._session: aiohttp.ClientSession | None = None
        self._progress = asyncio.Condition()

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=_SILENCE_S)
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=timeout)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def events(self) -> list[JSONObject]:
        """Every event that was seen, over all connections, in the order of arrival."""
        return [event for connection in self.connections for event in connection.events]

    @property
    def terminal(self) -> JSONObject | None:
        """The terminal event, once it was seen."""
        return next((event for event in self.events if event.get("type") in TERMINAL_TYPES), None)

    async def create(self, body: JSONObject, headers: Mapping[str, str] | None = None) -> Connection:
        """POST a streamed response and keep what comes, until the end or until the connection breaks."""
        request = {"json": {**body, "stream": True}, "headers": headers}
        return await self._keep_what_comes("POST", "/v1/responses", **request)

    async def read(self, deadline_s: float = 60.0) -> JSONObject:
        """Read, reconnecting after every end that is not the end, and give the terminal event.

        Raises `TimeoutError` when none came within the deadline; what was seen is kept.
        """
        pause_s = _FIRST_PAUSE_S
        async with asyncio.timeout(deadline_s):
            while (terminal := self.terminal) is None:
                connection = await self._connect_once()
                pause_s = _FIRST_PAUSE_S if connection.events else min(pause_s * 2, _LONGEST_PAUSE_S)
                if self.terminal is None:
                    await asyncio.sleep(pause_s)
        return terminal

    async def until_seen(self, count: int) -> None:
        """Wait until so many events were seen by a `read` that runs in another task."""
        async with self._progress:
            await self._progress.wait_for(lambda: len(self.events) >= count or self.terminal is not None)

    async def _connect_once(self) -> Connection:
        if self.response_id is None:
            message = "no response id: create() was not called, or it broke before the first event"
            raise RuntimeError(message)
        query = {"stream": "true"}
        if self._cursor is not None:
            query["starting_after"] = str(self._cursor)
        return await self._keep_what_comes("GET", f"/v1/responses/{self.response_id}", params=query)

    async def _keep_what_comes(self, method: str, path: str, **request: Any) -> Connection:
        connection = Connection(starting_after=self._cursor)
        self.connections.append(connection)
        try:
            await self._drain(connection, method, path, request)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            connection.ending = type(error).__name__
        return connection

    async def _drain(self, connection: Connection, method: str, path: str, request: JSONObject) -> None:
        if self._session is None:
            message = "a RecordingReader is used as an async context manager"
            raise RuntimeError(message)
        async with self._session.request(method, self.base_url + path, **request) as answer:
            connection.status = answer.status
            if answer.status != HTTPStatus.OK:
                connection.ending = "refused"
                return
            splitter = SseSplitter()
            async for chunk in answer.content.iter_any():
                for frame in splitter.feed(chunk):
                    await self._keep(connection, frame)
            connection.ending = "terminal" if self.terminal is not None else "closed"

    async def _keep(self, connection: Connection, frame: bytes) -> None:
        if frame == b"[DONE]":
            return
        event = msgspec.json.decode(frame)
        async with self._progress:
            connection.frames.append(frame)
            connection.events.append(event)
            self._cursor = event["sequence_number"]
            if self.response_id is None and "response" in event:
                self.response_id = event["response"]["id"]
            self._progress.notify_all()
