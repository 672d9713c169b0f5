"""`ChatCompletionsClient`: any chat-completions server as an `InferenceClient`.

Raw bytes through aiohttp; one connection pool per client without a limit (the loop bounds its own
work); one retry policy before the first event and none after it. Closing the iterator that `call`
gives closes the connection at once, and with it the upstream's work.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Self

import aiohttp
import msgspec

from antiphon.domain.errors import InferenceError, UpstreamBrokenError, UpstreamUnreachableError
from antiphon.domain.inference import InferenceEvent, InferenceRequest
from antiphon.upstream.chat.exchange import Exchange, Timeouts
from antiphon.upstream.chat.messages import DeveloperRole
from antiphon.upstream.chat.request import chat_body, chat_headers, is_openai, target_headers
from antiphon.upstream.protocol import UpstreamTarget
from antiphon.upstream.retry import RetryPolicy

__all__ = ["ChatCompletionsClient", "Timeouts"]

_COMPLETIONS = "/chat/completions"
_LISTING_S = 10.0


class ChatCompletionsClient:
    """A client of the server at `target`. Safe for many tasks of one event loop.

    A `session` that is given stays the caller's; otherwise one is opened at the first call and closed
    by `close`. `developer_role` is what developer messages are called: `system` suits every template.
    """

    def __init__(
        self,
        target: UpstreamTarget,
        *,
        session: aiohttp.ClientSession | None = None,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
        developer_role: DeveloperRole = "system",
    ) -> None:
        self.target = target
        self._given_session = session
        self._own_session: aiohttp.ClientSession | None = None
        self._timeouts = timeouts
        self._retry = retry
        self._developer_role: DeveloperRole = developer_role
        self._is_openai = is_openai(target)
        self._closed = False

    async def call(self, request: InferenceRequest) -> AsyncGenerator[InferenceEvent, None]:
        """The model's answer, ending with `InferenceFinished`. Raises `InferenceError`.

        Raises `InvalidRequestError` for input that a chat server cannot be given.
        """
        body = chat_body(request, openai=self._is_openai, developer_role=self._developer_role)
        headers = chat_headers(self.target, request)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._timeouts.total_s
        failures = 0
        while True:
            is_torn = False
            exchange = Exchange(self._session(), self._timeouts, ends_at)
            try:
                await exchange.begin(self.target.url, body, headers, stream=request.stream)
                while (events := await exchange.next_events()) is not None:
                    for event in events:
                        is_torn = True
                        yield event
                await exchange.drain()
                return
            except InferenceError as error:
                error.torn = error.torn or is_torn
                failures += 1
                wait_s = self._retry.wait_before_next(failures, error)
                if wait_s is None or loop.time() + wait_s >= ends_at:
                    raise
            finally:
                exchange.abandon()
            await self._retry.sleep(wait_s)

    async def models(self) -> list[str]:
        """The ids that the server lists. Raises `InferenceError`."""
        exchange = Exchange(
            self._session(),
            self._timeouts,
            asyncio.get_running_loop().time() + min(_LISTING_S, self._timeouts.total_s),
        )
        try:
            body = await exchange.fetch(self._models_url(), target_headers(self.target))
        finally:
            exchange.abandon()
        try:
            return [model.id for model in _decode_models(body).data]
        except msgspec.MsgspecError:
            raise UpstreamBrokenError("The model server's list of models cannot be read.") from None

    async def close(self) -> None:
        """Close the connections that are this client's own. Calls after this fail."""
        self._closed = True
        session, self._own_session = self._own_session, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _models_url(self) -> str:
        return self.target.url.removesuffix(_COMPLETIONS) + "/models"

    def _session(self) -> aiohttp.ClientSession:
        if self._given_session is not None:
            return self._given_session
        if self._closed:
            raise UpstreamUnreachableError("The client is closed.", retryable=False)
        if self._own_session is None:
            self._own_session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._own_session


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_decode_models = msgspec.json.Decoder(_Models).decode
