"""One directory, one scripted model, one server that dies, and everything that is known of them."""

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from antiphon.testing import EffectLedger, FakeUpstream, RecordingReader, loop_script
from antiphon.testing.evidence import ResponseHistory
from antiphon.testing.scripts import ChatRequest, Script
from antiphon.testing.server_process import ServerProcess
from antiphon.testing.snapshots import RunRecord, Snapshot, take_snapshot
from crash.forked import ForkedServer, Options
from crash.tools import LEDGER_VARIABLE, PACE_VARIABLE

JSONObject = dict[str, Any]

TOOLS = Path(__file__).with_name("tools.py")
THREE_EFFECTS = ("look", "put", "pay")
RETRY = {"x-stainless-retry-count": "1"}

WITHIN_S = 60.0
_POLL_S = 0.01


class Server(Protocol):
    """What `ServerProcess` and `ForkedServer` have in common."""

    url: str

    async def start(self, **environment: str) -> None: ...
    async def start_to_die(self, **environment: str) -> int: ...
    async def kill(self) -> int: ...
    async def ended(self, within_s: float = ...) -> int: ...


class World:
    """Made by `forked_world` or `served_world`; the server has been started."""

    def __init__(
        self, directory: Path, upstream: FakeUpstream, server: Any, session: aiohttp.ClientSession
    ) -> None:
        self.directory = directory
        self.upstream = upstream
        self.server = server
        self.ledger = EffectLedger(directory / "ledger.jsonl")
        self.snapshots: list[Snapshot] = []
        self._session = session
        session._retry_connection = False  # aiohttp would repeat a DELETE by itself, to the next process
        self._mark_numbers = itertools.count()

    @property
    def database(self) -> Path:
        """The server's SQLite file."""
        return self.directory / "journal.db"

    def tag(self) -> str:
        """A prompt that nobody else has: all of a response's traces carry it."""
        return f"run-{secrets.token_hex(6)}"

    def reader(self, response_id: str | None = None, **options: Any) -> RecordingReader:
        """A reader of this server."""
        return RecordingReader(self.server.url, response_id, **options)

    async def ask(
        self, method: str, path: str, body: JSONObject | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, JSONObject]:
        """One request, one JSON answer. Raises what aiohttp raises when the connection breaks."""
        async with self._session.request(
            method, self.server.url + path, json=body, headers=headers
        ) as answer:
            return answer.status, await answer.json()

    async def begin(self, tag: str, headers: dict[str, str] | None = None) -> str:
        """Start a background response; its id."""
        body = {"model": "fake", "input": tag, "background": True}
        status, response = await self.ask("POST", "/v1/responses", body, headers)
        assert status == 200, response
        return str(response["id"])

    def reading(self, reader: RecordingReader) -> "asyncio.Task[JSONObject]":
        """The reader reads to the end, beside whatever else happens."""
        return asyncio.create_task(reader.read(WITHIN_S))

    async def hears_keepalives(self, response_id: str, *, after: int, count: int = 3) -> None:
        """Wait until a reader was sent comments, and nothing else."""
        query = {"stream": "true", "starting_after": str(after)}
        path = f"{self.server.url}/v1/responses/{response_id}"
        async with asyncio.timeout(WITHIN_S), self._session.get(path, params=query) as answer:
            heard = b""
            while heard.count(b": keepalive\n\n") < count:
                heard += await answer.content.readany()
            assert heard.replace(b": keepalive\n\n", b"") == b""

    # --- deaths --------------------------------------------------------------------------------

    def arming(self, point: str) -> tuple[dict[str, str], Path]:
        """The environment that makes a process die at a crash point, and the file that proves it did."""
        mark = self.directory / f"mark-{next(self._mark_numbers)}"
        return {"ANTIPHON_CRASH_AT": point, "ANTIPHON_CRASH_MARK": str(mark)}, mark

    async def kill(self) -> Snapshot:
        """SIGKILL; the journal as it was left."""
        assert await self.server.kill() == -9
        return self.note_death()

    def note_death(self) -> Snapshot:
        """Keep the journal as the dead process left it."""
        self.snapshots.append(take_snapshot(self.database))
        return self.snapshots[-1]

    # --- evidence ------------------------------------------------------------------------------

    async def until_calls(self, count: int, *, phase: str = "start", tool: str | None = None) -> None:
        """Wait until the ledger has so many lines of a phase."""
        await until(
            lambda: sum(x.phase == phase and tool in {None, x.tool} for x in self.ledger.lines()) >= count
        )

    async def until_ended(self, response_id: str) -> JSONObject:
        """Ask for the response, without attaching to it, until it has ended."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                _, body = await self.ask("GET", f"/v1/responses/{response_id}")
                if body["status"] not in {"queued", "in_progress"}:
                    return body
                await asyncio.sleep(_POLL_S)

    def requests_of(self, tag: str) -> list[Any]:
        """What the model was asked for one response."""
        return [each for each in self.upstream.requests if ChatRequest(each.body).prompt == tag]

    def records_of(self, response_id: str) -> list[RunRecord]:
        """The response's run in each snapshot that knows it."""
        return [s.runs[response_id] for s in self.snapshots if response_id in s.runs]

    async def history(
        self,
        response_id: str,
        tag: str,
        readers: Sequence[RecordingReader] = (),
        *,
        cursors: Sequence[int] = (0, 3),
        status: str = "completed",
    ) -> ResponseHistory:
        """Collect the evidence of a response that has ended; the server is alive and idle."""
        _, body = await self.ask("GET", f"/v1/responses/{response_id}")
        replays = {cursor: await self._replay(response_id, cursor) for cursor in (-1, *cursors)}
        last = take_snapshot(self.database, response_id).runs[response_id]
        return ResponseHistory(
            body=body,
            records=[*self.records_of(response_id), last],
            replays=replays,
            readers=[reader.connections for reader in readers],
            requests=self.requests_of(tag),
            calls=[call for call in self.ledger.lines() if call.arguments["run"] == tag],
            status=status,
        )

    async def _replay(self, response_id: str, cursor: int) -> list[JSONObject]:
        async with self.reader(response_id, starting_after=None if cursor < 0 else cursor) as reader:
            await reader.read(WITHIN_S)
            return reader.events


async def until(condition: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    """Wait until a file that other processes write says so."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(_POLL_S)


@asynccontextmanager
async def forked_world(
    directory: Path,
    script: Script | None = None,
    *,
    pace_s: float = 0.002,
    tool_pace: float = 0.2,
    start: bool = True,
    **options: Any,
) -> AsyncIterator[World]:
    """A world whose server starts in milliseconds; `options` as for `crash.forked.Options`."""
    async with (
        FakeUpstream(script or small_script(), pace_s=pace_s) as upstream,
        aiohttp.ClientSession() as session,
    ):
        server = ForkedServer(
            Options(
                directory=str(directory),
                upstream_url=upstream.url + "/v1",
                environment={
                    LEDGER_VARIABLE: str(directory / "ledger.jsonl"),
                    PACE_VARIABLE: str(tool_pace),
                    **options.pop("environment", {}),
                },
                **options,
            )
        )
        try:
            if start:
                await server.start()
            yield World(directory, upstream, server, session)
        finally:
            await server.__aexit__(None, None, None)


@asynccontextmanager
async def served_world(
    directory: Path,
    script: Script | None = None,
    *,
    pace_s: float = 0.002,
    tool_pace: float = 0.2,
    **environment: str,
) -> AsyncIterator[World]:
    """A world whose server is `antiphon serve`, as anybody would start it."""
    async with (
        FakeUpstream(script or small_script(), pace_s=pace_s) as upstream,
        aiohttp.ClientSession() as session,
    ):
        store = f"sqlite:///{directory / 'journal.db'}"
        arguments = ["-m", "antiphon", "serve", upstream.url + "/v1", "--store", store, "--tools", str(TOOLS)]
        ledger = {LEDGER_VARIABLE: str(directory / "ledger.jsonl"), PACE_VARIABLE: str(tool_pace)}
        async with ServerProcess(
            arguments, directory=directory, environment={**ledger, **environment}
        ) as server:
            yield World(directory, upstream, server, session)


def small_script() -> Script:
    """Three model calls, each but the last asking for one call of each effect."""
    return loop_script(model_calls=3, tools=THREE_EFFECTS, per_turn=3)
