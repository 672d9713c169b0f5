"""A model server that says what a script tells it to, over real HTTP on 127.0.0.1.

In a test's own process it is an async context manager; as a process of its own
(`python -m antiphon.testing.fake_upstream --script FILE`, which prints its URL) it outlives a server
that is killed. Every request is recorded, byte for byte; requests go wrong on demand (`faults`).

    async with FakeUpstream(loop_script(model_calls=3)) as upstream:
        ...  # talk to upstream.url + "/v1/chat/completions"
        assert len(upstream.requests) == 3

A process is steered over HTTP: `POST /fake/faults` (a JSON list), `POST /fake/release`,
`GET /fake/requests`.
"""

import argparse
import asyncio
import hashlib
import itertools
import os
import secrets
import sys
import time
from collections import Counter, deque
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web

from antiphon.testing.chat_chunks import body_of, chunks_of, usage_chunk
from antiphon.testing.durable_lines import append_line
from antiphon.testing.faults import Fault, FaultKind, fault_in
from antiphon.testing.scripts import ChatRequest, Script, Turn, answer_script, script_from

JSONObject = dict[str, Any]

_LARGEST_BODY = 512 * 1024 * 1024
_HTML = "<!doctype html><html><body><h1>502 Bad Gateway</h1></body></html>"


class _Messages(msgspec.Struct):
    messages: list[msgspec.Raw]


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it came. `messages_raw` holds each message's bytes, for prefix checks."""

    number: int
    headers: dict[str, str]
    raw: bytes
    body: JSONObject
    messages_raw: tuple[bytes, ...]

    def extends(self, earlier: "RecordedRequest") -> bool:
        """Whether this request's messages begin, byte for byte, with those of the earlier one."""
        return self.messages_raw[: len(earlier.messages_raw)] == earlier.messages_raw


class FakeUpstream:
    """The server. `pace_s` is the pause between chunks, `log_path` an fsynced JSONL log of requests."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        port: int = 0,
        pace_s: float = 0.0,
        log_path: Path | str | None = None,
    ) -> None:
        self._script = script or answer_script()
        self._port = port
        self._pace_s = pace_s
        self._log_path = log_path
        self._faults: deque[Fault | None] = deque()
        self._attempts: Counter[str] = Counter()
        self._numbers = itertools.count()
        self._changed = asyncio.Condition()
        self._released = asyncio.Event()
        self._hanging = 0
        self._runner: web.AppRunner | None = None
        self.requests: list[RecordedRequest] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=_LARGEST_BODY)
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._complete),
                web.get("/v1/models", self._models),
                web.post("/fake/faults", self._take_faults),
                web.post("/fake/release", self._take_release),
                web.get("/fake/requests", self._give_requests),
            ]
        )
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._released.set()
        if self._runner is not None:
            await self._runner.cleanup()

    def inject(self, *faults: Fault | FaultKind | None) -> None:
        """Let the next requests go wrong, one each, in this order; None is a request that goes well."""
        self._faults.extend(Fault(kind=f) if isinstance(f, FaultKind) else f for f in faults)

    def release(self) -> None:
        """Let every hanging request go on, and those to come not hang at all."""
        self._released.set()

    @property
    def hanging(self) -> int:
        """How many requests hang at this moment."""
        return self._hanging

    async def until_requests(self, count: int) -> None:
        """Wait until so many requests have come."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.requests) >= count)

    async def until_hanging(self, count: int = 1) -> None:
        """Wait until so many requests hang."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._hanging >= count)

    async def _complete(self, http: web.Request) -> web.StreamResponse:
        recorded = await self._record(http)
        request = ChatRequest(recorded.body)
        fault = self._fault_for(http, recorded, request)
        if fault is not None:
            early = await self._instead_of_an_answer(fault)
            if early is not None:
                return early
        turn = self._script(request)
        answer = _Answer(turn, recorded)
        if recorded.body.get("stream"):
            return await self._stream(http, answer, fault)
        if fault is not None and fault.kind in {FaultKind.CUT_MID_STREAM, FaultKind.END_EARLY}:
            _cut(http)
        if fault is not None and fault.kind is FaultKind.HANG_MID_STREAM:
            await self._hang()
        return web.Response(body=answer.body(), content_type="application/json")

    async def _record(self, http: web.Request) -> RecordedRequest:
        raw = await http.read()
        recorded = RecordedRequest(
            number=next(self._numbers),
            headers={name.lower(): value for name, value in http.headers.items()},
            raw=raw,
            body=msgspec.json.decode(raw),
            messages_raw=tuple(bytes(each) for each in msgspec.json.decode(raw, type=_Messages).messages),
        )
        if self._log_path is not None:
            line = {"number": recorded.number, "pid": os.getpid(), "time": time.time(), "body": recorded.body}
            append_line(self._log_path, line)
        async with self._changed:
            self.requests.append(recorded)
            self._changed.notify_all()
        return recorded

    def _fault_for(self, http: web.Request, recorded: RecordedRequest, request: ChatRequest) -> Fault | None:
        if "x-fake-fault" in http.headers:
            return msgspec.json.decode(http.headers["x-fake-fault"], type=Fault)
        if self._faults:
            return self._faults.popleft()
        asked = fault_in(request.prompt)
        if asked is None:
            return None
        key = hashlib.sha256(b"\n".join(recorded.messages_raw)).hexdigest()
        self._attempts[key] += 1
        return asked if self._attempts[key] <= asked.times else None

    async def _instead_of_an_answer(self, fault: Fault) -> web.Response | None:
        match fault.kind:
            case FaultKind.HANG_BEFORE_HEADERS:
                await self._hang()
                return None
            case FaultKind.STATUS:
                headers = {} if fault.retry_after is None else {"Retry-After": f"{fault.retry_after:g}"}
                return web.json_response(_error(fault.status), status=fault.status, headers=headers)
            case FaultKind.GARBAGE:
                return web.Response(body=b"\x00\xff{not json at all", content_type="application/json")
            case FaultKind.HTML:
                return web.Response(text=_HTML, content_type="text/html")
            case FaultKind.EMPTY:
                return web.Response(body=b"", content_type="application/json")
            case FaultKind.ERROR_IN_200:
                return web.json_response(_error(500))
            case _:
                return None

    async def _stream(self, http: web.Request, answer: "_Answer", fault: Fault | None) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        pace_s = fault.pace_s if fault is not None and fault.kind is FaultKind.SLOW else self._pace_s
        repeats = 2 if fault is not None and fault.kind is FaultKind.DUPLICATE_CHUNKS else 1
        events = answer.events()
        strikes_at = None if fault is None else min(fault.after, len(events) - 1)
        for sent, data in enumerate(events):
            if fault is not None and sent == strikes_at:
                match fault.kind:
                    case FaultKind.HANG_MID_STREAM:
                        await self._hang()
                    case FaultKind.CUT_MID_STREAM:
                        _cut(http)
                        return response
                    case FaultKind.END_EARLY:
                        return response
                    case FaultKind.ERROR_MID_STREAM:
                        await response.write(b"data: " + msgspec.json.encode(_error(500)) + b"\n\n")
                        return response
            for _ in range(repeats):
                await response.write(b"data: " + data + b"\n\n")
            if pace_s:
                await asyncio.sleep(pace_s)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _hang(self) -> None:
        async with self._changed:
            self._hanging += 1
            self._changed.notify_all()
        try:
            await self._released.wait()
        finally:
            self._hanging -= 1

    async def _models(self, _http: web.Request) -> web.Response:
        models = [{"id": "fake", "object": "model", "created": 1, "owned_by": "antiphon"}]
        return web.json_response({"object": "list", "data": models})

    async def _take_faults(self, http: web.Request) -> web.Response:
        self.inject(*msgspec.json.decode(await http.read(), type=list[Fault | None]))
        return web.json_response({"queued": len(self._faults)})

    async def _take_release(self, _http: web.Request) -> web.Response:
        self.release()
        return web.json_response({"released": True})

    async def _give_requests(self, _http: web.Request) -> web.Response:
        return web.Response(
            body=msgspec.json.encode([request.body for request in self.requests]),
            content_type="application/json",
        )


class _Answer:
    """A turn in this attempt's own words."""

    def __init__(self, turn: Turn, request: RecordedRequest) -> None:
        self._turn = turn
        self._names = {
            "completion_id": f"cc{request.number}{secrets.token_hex(4)}",
            "model": str(request.body.get("model", "fake")),
        }
        self._preface = f"[attempt {request.number} {secrets.token_hex(3)}] "
        self._wants_usage = bool((request.body.get("stream_options") or {}).get("include_usage"))
        self._prompt_tokens = len(request.raw) // 4

    def events(self) -> list[bytes]:
        chunks = list(chunks_of(self._turn, preface=self._preface, **self._names))
        if self._wants_usage:
            chunks.append(usage_chunk(self._usage(), **self._names))
        return [msgspec.json.encode(chunk) for chunk in chunks]

    def body(self) -> bytes:
        return msgspec.json.encode(body_of(self._turn, self._usage(), preface=self._preface, **self._names))

    def _usage(self) -> JSONObject:
        completion = sum(1 for _ in chunks_of(self._turn, preface=self._preface, **self._names))
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self._prompt_tokens + completion,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        }


def _error(status: int) -> JSONObject:
    kind = "rate_limit_exceeded" if status == HTTPStatus.TOO_MANY_REQUESTS else "internal_error"
    return {"error": {"message": f"scripted failure {status}", "type": kind, "code": status}}


def _cut(http: web.Request) -> None:
    if http.transport is not None:
        http.transport.abort()


async def _serve(description: JSONObject, arguments: argparse.Namespace) -> None:
    faults = msgspec.convert(description.pop("faults", []), list[Fault | None])
    upstream = FakeUpstream(
        script_from(description), port=arguments.port, pace_s=arguments.pace, log_path=arguments.log
    )
    upstream.inject(*faults)
    async with upstream:
        sys.stdout.write(upstream.url + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    """Serve until the process is ended; the first line on standard output is the URL."""
    parser = argparse.ArgumentParser(prog="python -m antiphon.testing.fake_upstream")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free port")
    parser.add_argument("--script", help='JSON file: {"kind": "loop", ..., "faults": [...]}')
    parser.add_argument("--log", help="file that every request is appended to, fsynced")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds between chunks")
    arguments = parser.parse_args()
    description = msgspec.json.decode(Path(arguments.script).read_bytes()) if arguments.script else {}
    asyncio.run(_serve(description, arguments))


if __name__ == "__main__":
    main()
