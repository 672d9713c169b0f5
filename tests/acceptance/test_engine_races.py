"""The engine at the wrong moment: what comes between two of its awaits, and who is left waiting."""

import asyncio
import contextlib
import json

import aiohttp
import pytest

from antiphon import Engine, Limits, RequestContext, tool
from antiphon.domain.errors import (
    Error,
    ServerStoppingError,
    StoreRefusedError,
    StoreUnavailableError,
)
from antiphon.domain.inference import CallDelta, InferenceFinished, TextDelta
from antiphon.domain.limits import Durability
from antiphon.domain.requests import Arrival
from antiphon.domain.responses import ENDED_STATUSES
from antiphon.domain.tools import ToolKind, ToolSchema
from antiphon.domain.usage import Usage
from antiphon.engine.committer import Committer
from antiphon.engine.following import StreamCutError
from antiphon.engine.live import Channel, Closed
from antiphon.store.memory import MemoryStore
from antiphon.store.sqlite.store import SqliteStore
from serving import Serving

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
        self.tries = 0
        setattr(store, name, self)

    async def __call__(self, *args, **options):
        self.tries += 1
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


class TestRefused:
    """What the store takes from nobody fails its own response, and leaves no row behind that nobody ends."""

    async def test_an_entry_that_cannot_be_written(self, store):
        """A background response whose last entry is refused ends as failed, and its reader can see it."""
        model = Model(saying("Hello."))
        async with Engine(store=store, upstream=model) as engine:
            commit = store.commit

            async def refusing(group):
                return [
                    StoreRefusedError("not this")
                    if entry.response is not None and entry.response.status == "completed"
                    else (await commit([entry]))[0]
                    for entry in group
                ]

            store.commit = refusing
            response = await engine.responses.create(model="m", input="hi", background=True)
            ended = await until_ended(engine, response.id)
            assert ended.status == "failed"
            assert ended.error["code"] == "store_refused"
            await empty(engine)

    async def test_an_answer_that_is_no_text(self, store):
        """Nor does an answer that cannot be encoded leave its response open, told or not."""
        model = Model(saying("half a pair: \ud800"))
        async with Engine(store=store, upstream=model) as engine:
            response = await engine.responses.create(model="m", input="hi", background=True)
            assert (await until_ended(engine, response.id)).status == "failed"
            untold = await engine.submit(
                engine.read({"model": "m", "input": "hi"}), Arrival(body_digest="d", idempotency_key="k")
            )
            with pytest.raises(Error):
                await soon(untold.result())
            assert (await until_ended(engine, untold.response_id)).status == "failed"
            await empty(engine)

    async def test_its_client_is_told_not_to_retry(self, store):
        """An error after the admission of a foreground response says so: a retry would start nothing new."""
        model = Model(saying("half a pair: \ud800"))
        async with Serving(Engine(store=store, upstream=model)) as served:
            body = {"model": "m", "input": "hi"}
            answer = await served.post(body, headers={"Idempotency-Key": "k"})
            assert answer.status == 500
            assert answer.headers["x-should-retry"] == "false"
            assert answer.error["type"] == "server_error"

    async def test_a_store_that_refuses_everything(self, store):
        """It is not asked for ever."""
        model = Model(saying("Hello."))
        async with Engine(store=store, upstream=model) as engine:
            tries = 0
            commit = store.commit

            async def refusing(group):
                nonlocal tries
                tries += 1
                return await commit(group) if tries == 1 else [StoreRefusedError("nothing") for _ in group]

            store.commit = refusing
            await engine.responses.create(model="m", input="hi", background=True)
            async with asyncio.timeout(WITHIN_S):
                while tries < 3 or engine.active:
                    await asyncio.sleep(0)
            await asyncio.sleep(0.05)
            assert tries == 3
            await empty(engine)


async def until_ended(engine, response_id):
    async with asyncio.timeout(WITHIN_S):
        while (response := await engine.responses.retrieve(response_id)).status not in ENDED_STATUSES:
            await asyncio.sleep(0.005)
        return response


class TestDeleting:
    """A turn lives as long as a later one descends from it."""

    async def test_a_turn_that_is_being_followed(self, store):
        """Deleting a turn while the next one waits for its model keeps the history whole."""
        model = Model(saying("One."))
        async with Engine(store=store, upstream=model) as engine:
            first = await engine.responses.create(model="m", input="hi")
            model.asked.clear()
            model.gate.clear()
            following = asyncio.create_task(
                engine.responses.create(model="m", input="on", previous_response_id=first.id)
            )
            await soon(model.asked.wait())
            await soon(engine.responses.delete(first.id))
            model.gate.set()
            second = await soon(following)
            history = await store.history("default", second.id)
            assert len(history.items) == 4
            await empty(engine)


class TestRetrying:
    """An automatic retry finds its first attempt, also one that ended otherwise than well."""

    @pytest.mark.parametrize("status", ["incomplete", "failed"])
    async def test_a_long_response_that_ended_just_now(self, store, status):
        """What counts is when it ended, not when it was made."""
        now = [1000.0]
        paid = []

        @tool
        async def pay() -> str:
            """Take long."""
            now[0] += 3600 / 2
            paid.append(1)
            return "paid"

        last = calling("pay") if status == "incomplete" else ["nonsense"]
        model = Model(calling("pay"), last)
        limits = Limits(max_iterations=1 if status == "incomplete" else 10)
        async with Engine(
            store=store, upstream=model, tools=[pay], limits=limits, clock=lambda: now[0]
        ) as engine:
            request = engine.read({"model": "m", "input": "hi"})
            first = await engine.submit(request, Arrival(body_digest="d"))
            assert (await soon(first.result())).status == status
            await empty(engine)
            now[0] += 1
            again = await engine.submit(request, Arrival(body_digest="d", retry_count=1))
            assert again.response_id == first.response_id
            assert len(paid) == 1
            now[0] += 60
            late = await engine.submit(request, Arrival(body_digest="d", retry_count=1))
            assert late.response_id != first.response_id
            await soon(late.result())


class TestTakingOver:
    """What one start cannot do is left to the next, and keeps no other run from going on."""

    async def left_behind(self, url, count):
        model = Model(saying("Hello."), is_open=False)
        async with Engine(store=url, upstream=model) as engine:
            return [
                (await engine.responses.create(model="m", input="hi", background=True)).id
                for _ in range(count)
            ]

    async def test_a_context_that_cannot_be_made(self, tmp_path):
        """Its run is set aside; the others go on, and so does it at the next start."""
        url = f"sqlite:///{tmp_path / 'work.db'}"
        one, other = await self.left_behind(url, 2)

        async def factory(run):
            if run.response_id == one:
                raise LookupError("no such tenant")
            return RequestContext()

        async with Engine(store=url, upstream=Model(saying("Hello.")), context_factory=factory) as engine:
            assert (await until_ended(engine, other)).status == "completed"
            assert engine.unclaimable == [one]
            assert (await engine.responses.retrieve(one)).status == "in_progress"
            await empty(engine)
        async with Engine(store=url, upstream=Model(saying("Hello."))) as engine:
            assert (await until_ended(engine, one)).status == "completed"

    async def test_a_limit_counts_what_came_before(self, tmp_path):
        """Iterations are counted over all processes that drove the response."""
        url = f"sqlite:///{tmp_path / 'work.db'}"
        looked = []

        @tool(effect="pure")
        async def look() -> str:
            """Look."""
            looked.append(1)
            return "seen"

        class Interrupted(Model):
            async def call(self, request):
                if self.calls == 1:
                    self.gate.clear()
                    self.asked.clear()
                async for event in super().call(request):
                    yield event

        options = {"store": url, "tools": [look], "limits": Limits(max_iterations=3)}
        response_id = None
        for _ in range(2):
            model = Interrupted(calling("look"))
            async with Engine(upstream=model, **options) as engine:
                if response_id is None:
                    response_id = (await engine.responses.create(model="m", input="hi", background=True)).id
                async with asyncio.timeout(WITHIN_S):
                    while model.calls < 2:
                        await asyncio.sleep(0)
        async with Engine(upstream=Model(calling("look")), **options) as engine:
            ended = await until_ended(engine, response_id)
        assert ended.incomplete_details == {"reason": "max_iterations"}
        assert len(ended.output) == len(looked) == 3

    async def test_one_that_waits_is_not_given_up(self, store):
        """A response that still waits for its place is none of those that bring processes down."""
        model = Model(saying("Hello."), is_open=False)
        options = {"store": store, "upstream": model, "limits": Limits(running=1)}
        durability = Durability(max_takeovers=2)
        async with Engine(**options, durability=Durability(recovery=False)) as engine:
            begun = await engine.responses.create(model="m", input="hi", background=True)
            waiting = await engine.responses.create(model="m", input="hi", background=True)
            assert (begun.status, waiting.status) == ("in_progress", "queued")
            for _ in range(3):
                await store.take_over("a process that dies")
        model.gate.set()
        async with Engine(**options, durability=durability) as engine:
            assert (await until_ended(engine, begun.id)).error["code"] == "recovery_exhausted"
            assert (await until_ended(engine, waiting.id)).status == "completed"

    async def test_a_start_that_fails(self, tmp_path):
        """It lets go of the store."""
        path = tmp_path / "work.db"
        (one,) = await self.left_behind(f"sqlite:///{path}", 1)
        store = SqliteStore(path)
        Failing(store, "history", StoreUnavailableError("gone"))
        with pytest.raises(StoreUnavailableError):
            await Engine(store=store, upstream=Model(saying("Hello."))).start()
        async with Engine(store=f"sqlite:///{path}", upstream=Model(saying("Hello."))) as engine:
            assert (await until_ended(engine, one)).status == "completed"

    async def test_a_store_that_cannot_be_read_for_a_moment(self, tmp_path):
        """A run waits for it, and goes on."""
        path = tmp_path / "work.db"
        (one,) = await self.left_behind(f"sqlite:///{path}", 1)
        store = SqliteStore(path)
        events = Failing(store, "events", StoreUnavailableError("busy"))
        async with Engine(store=store, upstream=Model(saying("Hello."))) as engine:
            async with asyncio.timeout(WITHIN_S):
                while not events.tries:
                    await asyncio.sleep(0)
            events.error = None
            assert (await until_ended(engine, one)).status == "completed"


class TestReading:
    """A reader is told everything, or sent away: never left."""

    async def test_a_stop_while_a_response_that_is_not_streamed_is_followed(self, store, caplog):
        """Its reader is cut, as others are, and nothing is reported as a defect."""
        started = asyncio.Event()

        @tool(effect="pure")
        async def look() -> str:
            """Never end."""
            started.set()
            await asyncio.Event().wait()
            return "seen"

        async with Serving(Engine(store=store, upstream=Model(calling("look")), tools=[look])) as served:
            creating = asyncio.create_task(served.post({"model": "m", "input": "hi"}))
            await soon(started.wait())
            (listed,) = (await served.get("/v1/responses")).json["data"]
            async with served.session.get(f"/v1/responses/{listed['id']}?stream=true") as reader:
                served.engine.begin_stop()
                with pytest.raises(aiohttp.ClientPayloadError):
                    await soon(reader.read())
            assert (await soon(creating)).status == 503
        assert not [record for record in caplog.records if record.exc_info]

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


class TestBudgets:
    """The run's budgets bind its agents too."""

    @pytest.mark.parametrize("spent", [20, 35])
    async def test_an_agent_without_tokens(self, store, spent):
        """No model is asked for an answer of no tokens: the agent does not finish, and its caller ends."""

        class Agents:
            async def tools(self, ctx):
                return [
                    ToolSchema(
                        name="helper",
                        description="Help.",
                        parameters={"type": "object", "properties": {}},
                        kind=ToolKind.AGENT,
                        agent={"model": "helper"},
                    )
                ]

            async def execute(self, *call):
                raise AssertionError("an agent is not executed")

        asked = []

        class Counting(Model):
            async def call(self, request):
                asked.append(request.params["max_output_tokens"])
                async for event in super().call(request):
                    yield event

        first = [*calling("helper")[:-1], InferenceFinished("tool_calls", Usage(output_tokens=spent))]
        model = Counting(first, saying("Never said."))
        async with Engine(store=store, upstream=model, tools=[Agents()]) as engine:
            response = await engine.responses.create(model="m", input="hi", max_output_tokens=20)
        assert asked == [20]
        assert response.status == "incomplete"
        assert response.incomplete_details == {"reason": "max_output_tokens"}
        (called,) = response.output
        assert called["status"] == "failed"


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
