"""The application under a real server on 127.0.0.1, and what a strict client reads from it.

`serving(script)` puts it in front of a fake model server, `Serving(engine)` serves any engine; both listen
in the test's own event loop. `read_stream` takes an event stream apart by the
letter of the wire; `judge` and `judge_response` hold what came against the stream validator and both
published schemas, nothing skipped.
"""

import asyncio
import contextlib
import io
import json
import re
import socket
from collections.abc import AsyncIterator, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec
import uvicorn

from antiphon import ChatCompletionsClient, Engine, ServerOptions, UpstreamTarget, create_app
from antiphon.domain.responses import ENDED_STATUSES
from antiphon.store.protocol import StoredResponse
from antiphon.testing import FakeUpstream, SchemaValidator, check_response, check_stream
from antiphon.testing.scripts import Script

JSONObject = dict[str, Any]

SPEC = Path(__file__).parent / "spec"
_FRAME = re.compile(rb"event: ([a-z_.]+)\ndata: (\{[^\n]*\})")


class Answer(msgspec.Struct, frozen=True):
    """A whole HTTP answer."""

    status: int
    headers: Any
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def error(self) -> JSONObject:
        """The error object of an answer that must be an error of the wire's form."""
        assert self.status >= 400, self.raw[:500]
        assert self.headers["content-type"] == "application/json"
        body = self.json
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert isinstance(body["error"]["message"], str)
        assert body["error"]["message"]
        assert "Traceback" not in body["error"]["message"]
        return body["error"]


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class Serving:
    """An async context manager around `create_app(engine)` on a free port, with a client session."""

    def __init__(self, engine: Engine, options: ServerOptions | None = None) -> None:
        config = uvicorn.Config(
            create_app(engine, options),
            http="httptools",
            ws="none",
            lifespan="on",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self.engine = engine
        self.upstream = FakeUpstream()
        self.url = ""
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        listening = asyncio.ensure_future(self._server.listening.wait())
        await asyncio.wait({self._task, listening}, return_when=asyncio.FIRST_COMPLETED, timeout=10)
        assert listening.done(), "the server did not start"
        self._session = aiohttp.ClientSession(
            self.url, connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=60)
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait_for(self._task, 20)

    @property
    def session(self) -> aiohttp.ClientSession:
        assert self._session is not None
        return self._session

    async def ask(self, method: str, path: str, **request: Any) -> Answer:
        """One request, its answer read whole. Every answer carries a request id."""
        async with self.session.request(method, path, **request) as answer:
            raw = await answer.read()
            assert answer.headers["x-request-id"], path
            return Answer(answer.status, answer.headers, raw)

    async def get(self, path: str, **request: Any) -> Answer:
        return await self.ask("GET", path, **request)

    async def post(self, body: Any, path: str = "/v1/responses", **request: Any) -> Answer:
        headers = {"Content-Type": "application/json", **request.pop("headers", {})}
        return await self.ask(
            "POST", path, data=io.BytesIO(json.dumps(body).encode()), headers=headers, **request
        )

    async def create(self, body: JSONObject, **request: Any) -> JSONObject:
        """A response that was made without a fault, judged."""
        answer = await self.post({"model": "fake", **body}, **request)
        assert answer.status == 200, answer.raw
        return judge_response(answer.json)

    async def stream(self, body: JSONObject, **request: Any) -> list[JSONObject]:
        """The judged events of a streamed response, from the first to `[DONE]`."""
        answer = await self.post({"model": "fake", **body, "stream": True}, **request)
        assert answer.status == 200, answer.raw
        return judge(read_stream(answer))

    async def replay(self, response_id: str, after: int | None = None) -> list[JSONObject]:
        """The events of a response from a cursor, judged."""
        cursor = {} if after is None else {"starting_after": str(after)}
        answer = await self.get(f"/v1/responses/{response_id}", params={"stream": "true", **cursor})
        assert answer.status == 200, answer.raw
        return judge(read_stream(answer), starting_after=after)

    async def until_status(self, response_id: str, *statuses: str, deadline_s: float = 10) -> JSONObject:
        """The response as soon as it has one of these statuses."""
        async with asyncio.timeout(deadline_s):
            while True:
                body = (await self.get(f"/v1/responses/{response_id}")).json
                if body.get("status") in statuses:
                    return judge_response(body)
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def serving(
    script: Script | None = None,
    *,
    pace_s: float = 0.0,
    options: ServerOptions | None = None,
    client: JSONObject | None = None,
    **engine: Any,
) -> AsyncIterator[Serving]:
    """The server in front of a fake model server. `client` are options of the client between the two."""
    async with contextlib.AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(FakeUpstream(script, pace_s=pace_s))
        inference: Any = upstream.url + "/v1"
        if client is not None:
            target = UpstreamTarget(upstream.url, "/v1/chat/completions")
            inference = await stack.enter_async_context(ChatCompletionsClient(target, **client))
        made = Engine(**{"store": "memory:", "upstream": inference, **engine})
        served = await stack.enter_async_context(Serving(made, options))
        served.upstream = upstream
        yield served


def read_stream(answer: Answer) -> list[JSONObject]:
    """The events of a whole stream, which is held to the letter of the wire."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    raw = answer.raw
    assert raw.endswith(b"\n\ndata: [DONE]\n\n"), raw[-200:]
    assert b"\r" not in raw
    return read_frames(raw.removesuffix(b"data: [DONE]\n\n"))


def read_frames(raw: bytes) -> list[JSONObject]:
    """Events out of whole frames; comments may stand between them, nothing else."""
    assert raw == b"" or raw.endswith(b"\n\n"), raw[-200:]
    events = []
    for frame in raw.split(b"\n\n")[:-1]:
        if frame.startswith(b":"):
            assert b"\n" not in frame, "a comment stands between events, not in them"
            continue
        matched = _FRAME.fullmatch(frame)
        assert matched, frame[:300]
        event = json.loads(matched[2])
        assert event["type"] == matched[1].decode()
        events.append(event)
    return events


@cache
def schemas() -> SchemaValidator:
    """Both published schemas."""
    names = ("openresponses-2026-04-24.openapi.json", "openai-python-3.52.0-inventory.json")
    return SchemaValidator(*(json.loads((SPEC / name).read_bytes()) for name in names))


def judge(events: list[JSONObject], **options: Any) -> list[JSONObject]:
    """The same events, after the order and the shape of each were found right."""
    found = check_stream(events, **options)
    for event in events:
        found += schemas().event(event)
        if "response" in event:
            found += check_response(event["response"]) + schemas().response(event["response"])
    assert not found, found
    assert len({event["response"]["id"] for event in events if "response" in event}) <= 1
    return events


def judge_response(response: JSONObject) -> JSONObject:
    """The same response, after its keys, values and shapes were found right."""
    found = check_response(response) + schemas().response(response)
    assert not found, found
    return response


async def assert_nothing_hangs(s: Serving) -> Sequence[StoredResponse]:
    """No run is left at work, and no stored response without an end; gives those responses."""
    async with asyncio.timeout(5):
        while s.engine.active:
            await asyncio.sleep(0.01)
    page = await s.engine.store.list_responses("default", limit=100)
    assert {row.status for row in page.responses} <= ENDED_STATUSES
    return page.responses


def types(events: list[JSONObject]) -> list[str]:
    return [event["type"] for event in events]


def text_of(response: JSONObject) -> str:
    """All output text of a response."""
    return "".join(
        part.get("text", "")
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )
