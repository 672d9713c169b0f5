"""The story: three responses, and a kill -9 in the middle of the third."""

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from antiphon.demo.checks import Proof, check_effects, check_follow_up, check_kept, check_log, check_reader
from antiphon.demo.failure import DemoFailed
from antiphon.demo.reading import PROGRESS_S, Cut, Reader, get_json
from antiphon.demo.screen import Screen
from antiphon.demo.serving import DemoServer
from antiphon.testing.effect_ledger import EffectLedger
from antiphon.upstream.rehearsal import RehearsalServer

JSONObject = dict[str, Any]

_MODEL = "rehearsal"
_TWO_TOOLS = 'Look up weather(city="Lisbon"), and book_ticket(destination="Lisbon").'
_FOLLOW_UP_NUMBER = 2
_FOLLOW_UP = "Thank you. What was my first wish?"
_LONG = (
    'Look up weather(city="Porto"), book_ticket(destination="Porto"), and then tell me a long story. '
    "[words=110] [pace=0.03]"
)
_ASKED: tuple[tuple[str, JSONObject], ...] = (
    ("weather", {"city": "Lisbon"}),
    ("book_ticket", {"destination": "Lisbon"}),
    ("weather", {"city": "Porto"}),
    ("book_ticket", {"destination": "Porto"}),
)
_DELTAS_BEFORE_KILL = 25
_WHOLE_DEMO_S = 60.0
_KILLED = -9


def run_demo() -> int:
    """Play the story; 0 when all of it is proven, 1 with the reason when something is not."""
    screen = Screen()
    began = time.monotonic()
    try:
        proofs = asyncio.run(_play(screen))
    except DemoFailed as failure:
        screen.cut(f"FAILED: {failure}")
        return 1
    except TimeoutError:
        screen.cut(f"FAILED: it was not over within {_WHOLE_DEMO_S:.0f} s.")
        return 1
    complaints = [what for what, complaint in proofs if complaint is not None]
    if complaints:
        screen.cut(f"FAILED: {len(complaints)} of {len(proofs)} checks; the first: {complaints[0]}.")
        return 1
    took_s = time.monotonic() - began
    screen.title(f"\nNothing was lost and nothing was done twice ({len(proofs)} checks, {took_s:.0f} s).")
    return 0


async def _play(screen: Screen) -> list[Proof]:
    with tempfile.TemporaryDirectory(prefix="antiphon-demo-") as directory:
        async with (
            asyncio.timeout(_WHOLE_DEMO_S),
            RehearsalServer() as model,
            DemoServer(Path(directory), model.url) as server,
            aiohttp.ClientSession() as session,
        ):
            return await _Story(screen, server, session).tell()


class _Story:
    def __init__(self, screen: Screen, server: DemoServer, session: aiohttp.ClientSession) -> None:
        self._screen = screen
        self._server = server
        self._session = session
        self._deltas = 0
        self._mid_answer = asyncio.Event()

    async def tell(self) -> list[Proof]:
        screen, server = self._screen, self._server
        screen.title("antiphon demo: a server is killed in mid-answer.")
        screen.say(f"server {server.url} (process {server.pid}), its journal in SQLite", "dim")
        screen.say("model: rehearsal; tools: weather (pure), book_ticket (once)", "dim")
        screen.act(1, "A streamed response whose two tools run on the server, in parallel")
        first = await self._respond(_TWO_TOOLS)
        screen.act(2, "A follow-up that only names the response before it")
        second = await self._respond(_FOLLOW_UP, previous_response_id=first)
        screen.act(3, "A background response, and its reader; then kill -9 in the middle of the answer")
        reader = await self._respond_through_a_kill(_LONG)
        screen.act(4, "The evidence")
        return await self._evidence((first, second, reader.response_id), reader)

    async def _respond(self, prompt: str, **more: Any) -> str:
        self._screen.say(f"> {prompt}", "bold")
        reader = Reader(self._session, self._screen.show_event)
        try:
            await reader.create(self._server.url, {"model": _MODEL, "input": prompt, **more})
        except Cut as cut:
            raise DemoFailed(f"the connection broke by itself: {cut}.") from cut
        return reader.response_id

    async def _respond_through_a_kill(self, prompt: str) -> Reader:
        self._screen.say(f"> {prompt}", "bold")
        reader = Reader(self._session, self._watch)
        request = {"model": _MODEL, "input": prompt, "background": True}
        reading = asyncio.create_task(reader.create(self._server.url, request))
        try:
            await self._kill_in_mid_answer(reading)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        if reader.has_ended:
            raise DemoFailed("the answer was over before the kill: nothing was shown.")
        await self._server.start()
        self._screen.say(f"the server is started again on its store (process {self._server.pid})", "dim")
        self._screen.say(f"the reader comes back: starting_after={reader.cursor}", "dim")
        try:
            await reader.come_back(self._server.url)
        except Cut as cut:
            raise DemoFailed(f"the response does not go on: {cut}.") from cut
        return reader

    async def _kill_in_mid_answer(self, reading: "asyncio.Task[None]") -> None:
        seen = asyncio.create_task(self._mid_answer.wait())
        await asyncio.wait({seen, reading}, timeout=PROGRESS_S, return_when=asyncio.FIRST_COMPLETED)
        seen.cancel()
        if not self._mid_answer.is_set():
            if reading.done():
                reading.result()
            raise DemoFailed(f"the answer did not begin within {PROGRESS_S:.0f} s.")
        pid = self._server.pid
        exit_code = await self._server.kill()
        self._screen.cut(f"kill -9 {pid}")
        if sys.platform != "win32" and exit_code != _KILLED:
            raise DemoFailed(f"the server ended with {exit_code}, not by the kill.")
        await asyncio.wait({reading}, timeout=PROGRESS_S)

    def _watch(self, event: JSONObject) -> None:
        self._screen.show_event(event)
        self._deltas += event["type"] == "response.output_text.delta"
        if self._deltas >= _DELTAS_BEFORE_KILL:
            self._mid_answer.set()

    async def _evidence(self, response_ids: tuple[str, str, str], reader: Reader) -> list[Proof]:
        url = self._server.url
        replays, proofs = [], []
        for number, response_id in enumerate(response_ids, start=1):
            replayed = Reader(self._session)
            await replayed.replay(url, response_id)
            replays.append(replayed.events)
            response = await get_json(self._session, f"{url}/v1/responses/{response_id}")
            found = [*check_log(replayed.events, response)]
            if number == _FOLLOW_UP_NUMBER:
                found += check_follow_up(response)
            proofs += [(f"response {number}: {what}", complaint) for what, complaint in found]
        before, after = reader.connections[0], reader.connections[-1]
        proofs += check_reader(before, after)
        proofs += check_kept(before, replays[-1])
        proofs += check_effects(EffectLedger(self._server.ledger_path), _ASKED, replays)
        self._screen.proofs(proofs)
        await self._show_steps(response_ids[-1])
        return proofs

    async def _show_steps(self, response_id: str) -> None:
        """With the command that anybody would use for it."""
        self._screen.say(
            f"\n    $ antiphon responses show {response_id[:17]}… --url {self._server.url}", "dim"
        )
        command = [
            sys.executable,
            "-m",
            "antiphon",
            "responses",
            "show",
            response_id,
            "--url",
            self._server.url,
        ]
        process = await asyncio.create_subprocess_exec(*command)
        try:
            exit_code = await asyncio.wait_for(process.wait(), PROGRESS_S)
        except TimeoutError as error:
            process.kill()
            raise DemoFailed("the steps were not shown in time.") from error
        if exit_code != 0:
            raise DemoFailed("the steps cannot be shown.")
