"""The engine at the wrong moment: what comes between two of its awaits, and who is left waiting."""

import asyncio
import contextlib
import json

import pytest

from antiphon import Engine, tool
from antiphon.domain.errors import Error, ServerStoppingError, StoreUnavailableError
from antiphon.domain.inference import CallDelta, InferenceFinished, TextDelta
from antiphon.domain.limits import Durability
from antiphon.engine.committer import Committer
from antiphon.engine.following import StreamCutError
from antiphon.engine.live import Channel, Closed
from antiphon.store.memory import MemoryStore
from antiphon.store.sqlite.store import SqliteStore

pytestmark = pytest.mark.anyio

WITHIN_S = 10.0


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "work.db")


class Model:
    """An inference client of this process: its answers in turn (the last for ever), once the gate is open."""

    def __init__(self, *answers, is_open=True):
        self.answers = answers
        self.asked = asyncio.Event()
        self.calls = 0
        self.gate = asyncio.Event()
        if is_open:
            self.gate.set()

    async def call(self, request):
        answer = self.answers[min(self.calls, len(self.answers) - 1)]
        self.calls += 1
        self.asked.set()
        await self.gate.wait()
        for event in answer:
            yield event


def saying(*pieces):
    return [*map(TextDelta, pieces), InferenceFinished("stop")]


def calling(*names):
    return [*(CallDelta(n, name, "{}") for n, name in enumerate(names)), InferenceFinished("tool_calls")]


class Held:
    """A method of a store that waits at its first call, before or after doing its work."""

    def __init__(self, store, name):
        self._real = getattr(store, name)
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        setattr(store, name, self)

    async def __call__(self, *args, **options):
        result = await self._real(*args, **options)
        if not self.reached.is_set():
            self.reached.set()
            await self.go_on.wait()
        return result


class Failing:
    """A method of a store that fails as long as it is told to."""

    def __init__(self, store, name, error):
        self._real = getattr(store, name)
        self.error = error
        setattr(store, name, self)

    async def __call__(self, *args, **options):
        if self.error is not None:
            raise self.error
        return await self._real(*args, **options)


async def soon(work):
    return await asyncio.wait_for(work, WITHIN_S)


async def empty(engine):
    """Wait until nothing is at work, and see that nothing has kept its place."""
    async with asyncio.timeout(WITHIN_S):
        for run in list(engine.active.values()):
            await run.gone()
        while engine.active:
            await asyncio.sleep(0)
    assert not engine.parts.workload.places


async def background(engine, model, **parameters):
    """A response that is under way, and its run."""
    response = await engine.responses.create(model="m", input="hi", background=True, **parameters)
    await soon(model.asked.wait())
    return response, engine.active[response.id]


class TestClosing:
    """Nobody waits for ever for an engine that has gone."""

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_tool_that_does_not_end_is_left_behind(self, store, stream):
        """Whoever waits for a run that is killed at the end of the grace hears of it."""
        started = asyncio.Event()

        @tool
        async def pay() -> str:
            """Never end."""
            started.set()
            await asyncio.Event().wait()
            return "paid"

        async def reading():
            if not stream:
                return await engine.responses.create(model="m", input="hi")
            return [
                event async for event in await engine.responses.create(model="m", input="hi", stream=True)
            ]

        model = Model(calling("pay"), saying("Done."))
        engine = Engine(
            store=store, upstream=model, tools=[pay], durability=Durability(shutdown_grace_s=0.05)
        )
        await engine.start()
        reader = asyncio.create_task(reading())
        await soon(started.wait())
        await soon(engine.close())
        with pytest.raises((ServerStoppingError, StreamCutError)):
            await soon(reader)

    async def test_a_request_that_is_being_admitted_is_refused(self, store):
        """A stop that comes between a request's checks and its start lets no new run begin."""
        model = Model(saying("Hello."))
        async with Engine(store=store, upstream=model) as engine:
            first = await engine.responses.create(model="m", input="hi")
            history = Held(store, "history")
            late = asyncio.create_task(
                engine.responses.create(model="m", input="on", previous_response_id=first.id)
            )
            await soon(history.reached.wait())
            engine.begin_stop()
            history.go_on.set()
            with pytest.raises(ServerStoppingError):
                await soon(late)
            await empty(engine)
            assert model.calls == 1


class TestCancelling:
    """A cancellation claims the run anew: nothing may come between."""

    async def test_all_at_once(self, store):
        """Many cancellations of one response have one outcome."""
        for _ in range(10):
            model = Model(saying("Hello."), is_open=False)
            async with Engine(store=store, upstream=model) as engine:
                response, _ = await background(engine, model)
                ended = await soon(asyncio.gather(*(engine.responses.cancel(response.id) for _ in range(8))))
                assert {each.status for each in ended} == {"cancelled"}
                await empty(engine)

    async def test_of_what_nobody_drives(self, store):
        """Nor do they get in each other's way when no run is at work here."""
        model = Model(saying("Hello."), is_open=False)
        async with Engine(store=store, upstream=model) as engine:
            response, run = await background(engine, model)
            run.stop()
            await empty(engine)
            ended = await soon(asyncio.gather(*(engine.responses.cancel(response.id) for _ in range(8))))
            assert {each.status for each in ended} == {"cancelled"}
            await empty(engine)

    async def test_by_somebody_who_leaves(self, store):
        """A cancellation goes on when the one who asked for it does not wait."""
        model = Model(saying("Hello."), is_open=False)
        async with Engine(store=store, upstream=model) as engine:
            response, run = await background(engine, model)
            steps = Held(store, "list_steps")
            asking = asyncio.create_task(engine.responses.cancel(response.id))
            await soon(steps.reached.wait())
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
            steps.go_on.set()
            assert (await soon(asyncio.shield(run.finished))).status == "cancelled"
            await empty(engine)
            assert (await engine.responses.retrieve(response.id)).status == "cancelled"

    async def test_when_the_store_cannot_be_read(self, store):
        """Whoever waits for the response hears of it, its place is free, and it can be asked again."""
        model = Model(saying("Hello."), is_open=False)
        async with Engine(store=store, upstream=model) as engine:
            response, run = await background(engine, model)
            steps = Failing(store, "list_steps", StoreUnavailableError("gone"))
            with pytest.raises(StoreUnavailableError):
                await soon(engine.responses.cancel(response.id))
            with pytest.raises(StoreUnavailableError):
                await soon(asyncio.shield(run.finished))
            await empty(engine)
            steps.error = None
            assert (await soon(engine.responses.cancel(response.id))).status == "cancelled"


class TestReading:
    """A reader is told everything, or sent away: never left."""

    async def test_who_comes_to_a_closed_channel_is_sent_away(self):
        """A subscription to what was closed before is closed."""
        channel = Channel()
        channel.close()
        assert await soon(channel.subscribe().next()) == Closed()

    async def test_what_was_deleted_under_a_slow_reader(self, store):
        """One that fell behind, and finds the log erased, is cut."""
        model = Model(saying(*("w" * 50_000 for _ in range(60))))
        async with Engine(store=store, upstream=model) as engine:
            events = await engine.responses.create(model="m", input="hi", stream=True)
            first = json.loads((await anext(events)).data)
            await empty(engine)
            await engine.responses.delete(first["response"]["id"])

            async def rest():
                async for _ in events:
                    pass

            with pytest.raises(StreamCutError):
                await soon(rest())

    async def test_a_long_answer_that_is_not_stored(self, store):
        """The end of a long answer, told at once, is not taken for a slow reader."""
        model = Model(saying(*("w" * 1000 for _ in range(600))))
        async with Engine(store=store, upstream=model) as engine:
            stream = await engine.responses.create(model="m", input="hi", stream=True, store=False)
            assert [event.type async for event in stream][-1] == "response.completed"

    async def test_a_background_response_has_no_reader(self, store):
        """Nothing is kept for the one who created a background response and does not read it."""
        model = Model(saying("Hello."), is_open=False)
        async with Engine(store=store, upstream=model) as engine:
            _, run = await background(engine, model)
            assert not run.channel.subscriptions


class TestCommitting:
    """One writer for all: it outlives what goes wrong with one."""

    async def test_an_entry_that_cannot_be_made_while_the_store_is_away(self):
        """It fails its own run, and the writer goes on."""

        class Store:
            tries = 0

            async def commit(self, group):
                self.tries += 1
                if self.tries == 1:
                    raise StoreUnavailableError("away")
                return [None for _ in group]

        class Entry:
            new_run = None

        class Journal:
            def __init__(self, *, broken=False):
                self.broken = broken
                self.heard = asyncio.get_running_loop().create_future()

            def take(self):
                if self.broken:
                    raise ValueError("not JSON")
                return Entry()

            def settle(self, commit, outcome):
                self.heard.set_result(outcome)

            def die(self, error):
                self.heard.set_result(error)

        store = Store()
        committer = Committer(store, window_s=0.0)
        committer.start()
        first, broken, last = Journal(), Journal(broken=True), Journal()
        committer.kick(first, urgent=True)
        async with asyncio.timeout(WITHIN_S):
            while not store.tries:
                await asyncio.sleep(0)
        committer.kick(broken, urgent=True)
        assert isinstance(await soon(broken.heard), Error)
        assert await soon(first.heard) is None
        committer.kick(last, urgent=True)
        assert await soon(last.heard) is None
        await committer.close()

    async def test_nobody_is_held_up_when_only_admissions_were_refused(self, store):
        """A store that is there again counts as such, also when nobody has written since."""
        model = Model(saying("Hello."))
        async with Engine(store=store, upstream=model) as engine:
            commits = Failing(store, "commit", StoreUnavailableError("full"))
            with pytest.raises(StoreUnavailableError):
                await soon(engine.responses.create(model="m", input="hi", background=True))
            commits.error = None
            async with asyncio.timeout(WITHIN_S):
                while engine.parts.committer.unavailable_since is not None:
                    await asyncio.sleep(0.01)
