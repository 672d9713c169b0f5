"""The reader that reconnects: nothing is lost, nothing is read twice."""

import asyncio
import json

import pytest
from aiohttp import web

from antiphon.testing import RecordingReader

pytestmark = pytest.mark.anyio

TYPES = ["response.created", "response.in_progress", "x", "y", "response.completed"]


def frame(number):
    event = {"type": TYPES[number], "sequence_number": number, "response": {"id": "resp_1"}}
    return f"event: {TYPES[number]}\ndata: {json.dumps(event)}\n\n".encode()


class Server:
    """Gives so many events on each connection, then cuts it; 0 refuses."""

    def __init__(self, portions):
        self.portions = list(portions)
        self.asked = []

    async def answer(self, request):
        cursor = int(request.query.get("starting_after", -1))
        self.asked.append((request.method, cursor))
        portion = self.portions.pop(0)
        if portion == 0:
            return web.json_response({"error": {}}, status=503)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(cursor + 1, min(cursor + 1 + portion, len(TYPES))):
            await response.write(b": keepalive\n\n" + frame(number))
        if self.portions:
            await asyncio.sleep(0)
            request.transport.close()
        else:
            await response.write(b"data: [DONE]\n\n")
        return response


@pytest.fixture
async def serve():
    runners = []

    async def start(portions):
        server = Server(portions)
        app = web.Application()
        app.add_routes(
            [web.get("/v1/responses/resp_1", server.answer), web.post("/v1/responses", server.answer)]
        )
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return server, f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


async def test_reads_to_the_end_through_broken_connections(serve):
    """Each connection goes on after the last event that was seen."""
    server, url = await serve([2, 0, 1, 9])
    async with RecordingReader(url, "resp_1") as reader:
        terminal = await reader.read(20)
    assert terminal["type"] == "response.completed"
    assert [event["sequence_number"] for event in reader.events] == [0, 1, 2, 3, 4]
    assert server.asked == [("GET", -1), ("GET", 1), ("GET", 1), ("GET", 2)]
    assert [connection.status for connection in reader.connections] == [200, 503, 200, 200]
    assert reader.connections[-1].ending == "terminal"
    assert b"".join(f for c in reader.connections for f in c.frames).count(b"sequence_number") == 5


async def test_creating_learns_the_id(serve):
    """A POST that breaks is gone on with by its response's id."""
    _, url = await serve([2, 9])
    async with RecordingReader(url) as reader:
        connection = await reader.create({"input": "hi"})
        assert len(connection.events) == 2
        assert reader.response_id == "resp_1"
        await reader.read(20)
    assert len(reader.events) == 5


async def test_a_server_that_is_gone_is_waited_for_until_the_deadline():
    """Refused connections are tried again; the deadline ends it."""
    async with RecordingReader("http://127.0.0.1:9", "resp_1") as reader:
        with pytest.raises(TimeoutError):
            await reader.read(0.3)
    assert len(reader.connections) > 1
    assert reader.events == []


async def test_progress_can_be_waited_for(serve):
    """Another task is told when so many events were seen."""
    _, url = await serve([1, 9])
    async with RecordingReader(url, "resp_1") as reader:
        waiting = asyncio.ensure_future(reader.until_seen(4))
        await reader.read(20)
        await asyncio.wait_for(waiting, 5)
