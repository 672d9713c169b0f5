"""One HTTP exchange with a chat-completions server: bytes out, inference events in, deadlines kept.

`Exchange.begin` sends the request and reads the status; `next_events` waits for more and returns what
one read brought, or None at the end; `abandon` cuts the connection at once; `fetch` is the short form
for documents. Every failure leaves as an `InferenceError`.

Deadlines are kept by one timer per exchange that closes the connection when it finds that it has
waited too long, so a token costs no timer, and no cancel scope spans a reader's own work. Time that
the reader takes does not count as the server's silence.
"""

import asyncio
import io
import time
from typing import Literal

import aiohttp
import msgspec

from antiphon.core.sse import SseSplitter
from antiphon.domain.errors import (
    InferenceError,
    SerializationError,
    UpstreamBrokenError,
    UpstreamTimeoutError,
    UpstreamUnreachableError,
)
from antiphon.domain.inference import InferenceEvent
from antiphon.upstream.chat.answer import StreamedAnswer, whole_answer
from antiphon.upstream.chat.failures import refusal

_MAX_BODY_BYTES = 64 * 1024 * 1024
_MAX_ERROR_BYTES = 64 * 1024
# aiohttp writes bytes in one go and warns of it; of a file it sends piece by piece.
_LARGE_BYTES = 512 * 1024
# After its finish reason a server owes only the usage and `[DONE]`; some forget to hang up.
_SETTLE_S = 5.0
# How long to wait for the end of the body after `[DONE]`, to keep the connection for the next call.
_DRAIN_S = 0.25
_SHORTEST_CHECK_S = 0.01

WHOLE_FACTOR = 5

_Expired = Literal["first_byte", "idle", "total", "settle"]


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: to connect; from asking until the first byte of an answer; of silence in an answer; of all.

    An answer that is not streamed sends its first byte when it is whole: it is given `WHOLE_FACTOR`
    times `first_byte_s`. `total_s` spans every attempt of one call.
    """

    connect_s: float = 10.0
    first_byte_s: float = 120.0
    idle_s: float = 60.0
    total_s: float = 1800.0


class Exchange:
    """One request and its answer. Used by one task."""

    def __init__(self, session: aiohttp.ClientSession, timeouts: Timeouts, ends_at: float) -> None:
        self._session = session
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._ends_at = ends_at
        self._asked_at = self._loop.time()
        self._first_byte_s = timeouts.first_byte_s
        self._waiting_since: float | None = None
        self._has_bytes = False
        self._read_bytes = 0
        self._expired: _Expired | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._response: aiohttp.ClientResponse | None = None
        self._streamed: StreamedAnswer | None = None
        self._splitter = SseSplitter()
        self._settling = False
        self._ended = False

    async def begin(self, url: str, body: bytes, headers: dict[str, str], *, stream: bool) -> None:
        """Send the request and read status and headers. A refusal raises `UpstreamRefusedError`."""
        if not stream:
            self._first_byte_s *= WHOLE_FACTOR
        kind = await self._ask("POST", url, body, headers)
        if kind == "text/html":
            raise UpstreamBrokenError(
                "The model server answered with a web page.",
                hint="Check the address of this upstream: something else may answer there.",
            )
        if kind == "text/event-stream" or (stream and not kind.endswith("json")):
            self._streamed = StreamedAnswer()

    async def next_events(self) -> list[InferenceEvent] | None:
        """The events of the next read (perhaps none), None after the last."""
        if self._ended:
            return None
        if self._streamed is None:
            self._ended = True
            return whole_answer(await self._read_whole())
        return await self._next_streamed(self._streamed)

    async def fetch(self, url: str, headers: dict[str, str]) -> bytes:
        """The whole document at `url`."""
        await self._ask("GET", url, None, headers)
        return await self._read_whole()

    async def drain(self) -> None:
        """Read what little follows the answer, so that the connection can serve again."""
        response = self._response
        if response is None or response.content.at_eof():
            return
        try:
            async with asyncio.timeout(_DRAIN_S):
                while not response.content.at_eof():
                    await response.content.readany()
        except (TimeoutError, aiohttp.ClientError, OSError):
            return  # `abandon` closes it: an answer that is whole stays whole

    def abandon(self) -> None:
        """Release what is held; a connection in mid-answer is cut."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._response is not None:
            self._response.close()

    async def _ask(self, method: str, url: str, body: bytes | None, headers: dict[str, str]) -> str:
        """Send and read the headers; the content type of an answer with status 200."""
        response = self._response = await self._headers_of(method, url, body, headers)
        self._watch()
        if response.status == 200:  # noqa: PLR2004 - the one status that carries an answer
            return response.content_type
        raise refusal(
            response.status,
            await self._read_some(_MAX_ERROR_BYTES),
            retry_after=response.headers.get("Retry-After"),
            now_s=time.time(),
        )

    async def _headers_of(
        self, method: str, url: str, body: bytes | None, headers: dict[str, str]
    ) -> aiohttp.ClientResponse:
        limit_s = min(self._first_byte_s, self._ends_at - self._asked_at)
        try:
            async with asyncio.timeout(limit_s):
                return await self._session.request(
                    method,
                    url,
                    data=body if body is None or len(body) < _LARGE_BYTES else io.BytesIO(body),
                    headers=headers,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, connect=self._timeouts.connect_s),
                )
        except aiohttp.ConnectionTimeoutError:
            raise UpstreamTimeoutError(
                f"The model server took no connection within {self._timeouts.connect_s:g} s."
            ) from None
        except TimeoutError:
            raise self._timeout("total" if limit_s < self._first_byte_s else "first_byte") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _unreachable(error) from error

    async def _next_streamed(self, answer: StreamedAnswer) -> list[InferenceEvent]:
        try:
            chunk = await self._read()
        except InferenceError:
            if not answer.has_finish_reason:
                raise
            chunk = b""
        try:
            payloads = self._splitter.feed(chunk) if chunk else self._splitter.close()
            events = answer.feed(payloads)
        except SerializationError as error:
            raise UpstreamBrokenError(f"The model server's stream cannot be read: {error}") from None
        except UpstreamBrokenError:
            if chunk or not answer.has_finish_reason:
                raise
            events = []
        if answer.done or not chunk:
            self._ended = True
            events.append(answer.finished())
        elif answer.has_finish_reason and not self._settling:
            self._settling = True
            self._watch()
        return events

    async def _read_whole(self) -> bytes:
        pieces = []
        while chunk := await self._read():
            pieces.append(chunk)
        return b"".join(pieces)

    async def _read_some(self, limit_bytes: int) -> bytes:
        """The beginning of a body that is only looked at; that it breaks off is no matter."""
        pieces = b""
        try:
            while len(pieces) < limit_bytes and (chunk := await self._read()):
                pieces += chunk
        except InferenceError:
            pass
        return pieces[:limit_bytes]

    async def _read(self) -> bytes:
        """What has arrived, at least one byte; nothing at the end of the body."""
        content = self._response.content if self._response is not None else None
        if content is None:
            return b""
        self._waiting_since = self._loop.time()
        try:
            chunk = await content.readany()
        except (aiohttp.ClientError, OSError) as error:
            if self._expired is not None:
                raise self._timeout(self._expired) from None
            raise UpstreamBrokenError(
                "The model server's answer broke off.",
                hint="Look at the model server's log for this time.",
            ) from error
        finally:
            self._waiting_since = None
        if not self._has_bytes:
            self._has_bytes = True
            self._watch()
        self._read_bytes += len(chunk)
        if self._read_bytes > _MAX_BODY_BYTES:
            raise UpstreamBrokenError(
                f"The model server's answer is larger than {_MAX_BODY_BYTES} bytes.", retryable=False
            )
        return chunk

    def _watch(self) -> None:
        """Close the connection if a limit has passed, else look again when the next one may."""
        if self._timer is not None:
            self._timer.cancel()
        now = self._loop.time()
        name, at = self._next_limit(now)
        if at <= now:
            self._expired = name
            self._timer = None
            if self._response is not None:
                self._response.close()
            return
        self._timer = self._loop.call_at(max(at, now + _SHORTEST_CHECK_S), self._watch)

    def _next_limit(self, now: float) -> tuple[_Expired, float]:
        limits = self._timeouts
        since = self._waiting_since
        name: _Expired = "idle"
        if not self._has_bytes:
            name, at = "first_byte", self._asked_at + self._first_byte_s
        elif self._settling:
            name, at = "settle", (now if since is None else since) + min(_SETTLE_S, limits.idle_s)
        else:
            at = (now if since is None else since) + limits.idle_s
        return (name, at) if at < self._ends_at else ("total", self._ends_at)

    def _timeout(self, which: _Expired) -> UpstreamTimeoutError:
        limits = self._timeouts
        match which:
            case "first_byte":
                return UpstreamTimeoutError(f"The model server sent nothing within {self._first_byte_s:g} s.")
            case "total":
                return UpstreamTimeoutError("The model server took longer than it is allowed to.")
            case "idle" | "settle":
                return UpstreamTimeoutError(f"The model server was silent for {limits.idle_s:g} s.")


def _unreachable(error: Exception) -> InferenceError:
    """Before any header: no connection, or one that was closed without a word."""
    if isinstance(error, aiohttp.InvalidURL):
        return UpstreamUnreachableError("The address of the model server is not a URL.", retryable=False)
    if isinstance(error, aiohttp.ClientSSLError):
        return UpstreamUnreachableError(
            "No secure connection to the model server could be made.",
            retryable=False,
            hint="Check its certificate, and whether its address is https.",
        )
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientConnectorError | OSError):
        return UpstreamUnreachableError(
            "The model server cannot be reached.", hint="Check that it runs, and its address."
        )
    return UpstreamBrokenError("The model server's answer is not HTTP as we know it.")
