"""One run at work in this process: its journal, its task, its readers.

A response's `ActiveRun` lives from admission (or takeover) to its end. When the run is claimed anew
within the process (a cancellation), journal and task are replaced; channel, readers and waiters stay.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import msgspec

from antiphon.domain.crash_points import reach
from antiphon.domain.errors import (
    ClaimLost,
    DuplicateResponseError,
    Error,
    LoopError,
    LoopStoreError,
    ServerStoppingError,
    StoreError,
    StoreUnavailableError,
)
from antiphon.domain.requests import FrozenRequest
from antiphon.domain.steps import StepKind, StepState
from antiphon.domain.tools import RequestContext, ToolEffect
from antiphon.engine.failures import error_payload
from antiphon.engine.journal import RunJournal
from antiphon.engine.journal_sink import JournalSink
from antiphon.engine.live import Channel
from antiphon.engine.loop import run_response_loop
from antiphon.engine.parts import FrozenTools, Parts
from antiphon.engine.protocol import Ending
from antiphon.engine.recovery import mend_chain
from antiphon.engine.stopping import RunStoppedError, StopSignal
from antiphon.engine.workload import Place
from antiphon.observe import metrics
from antiphon.observe.logs import get_logger
from antiphon.store.protocol import RunMode

log = get_logger("antiphon.runs")

SETTLE_S = 1.0
MEND_AGAIN_S = 0.5
SHUTDOWN = "shutdown"
DISCONNECTED = "disconnected"


class Finished(msgspec.Struct, frozen=True):
    """How a response ended: its whole JSON, and the error with its HTTP status when it failed."""

    status: str
    body: bytes
    error: dict[str, object] | None


class Connection:
    """A client's connection. One that we close ourselves cancels nothing."""

    closed_by_us = False


class ActiveRun:
    """A run of this process. `finished` and `admitted` may be awaited by many."""

    def __init__(
        self,
        parts: Parts,
        *,
        response_id: str,
        run_id: str,
        project: str,
        mode: RunMode,
        body_digest: str,
        frozen: FrozenRequest,
        place: Place,
        left: Callable[["ActiveRun"], None],
    ) -> None:
        self.response_id = response_id
        self.run_id = run_id
        self.project = project
        self.mode: RunMode = mode
        self.body_digest = body_digest
        self.frozen = frozen
        self.channel = Channel(logged=frozen.request.store)
        self.readers = 0
        self.held_s: float | None = None
        self.taken_over = False
        self.broken_by: Error | None = None
        self.is_given_up = False
        loop = asyncio.get_running_loop()
        self.admitted: asyncio.Future[None] = loop.create_future()
        self.finished: asyncio.Future[Finished] = loop.create_future()
        for future in (self.admitted, self.finished):
            future.add_done_callback(_seen)
        self._parts = parts
        self._place = place
        self._left = left
        self._stop = StopSignal()
        self._attached = asyncio.Event()
        self._grace: asyncio.TimerHandle | None = None
        self._journal: RunJournal | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def told(self) -> bool:
        """True when the response's events are kept."""
        return self.mode != "foreground"

    # --- driving -------------------------------------------------------------------------------

    def start(self, journal: RunJournal, context: RequestContext | None, *, starts_queued: bool) -> None:
        """Begin to drive the run from where its chain stands."""
        self._begin(journal, self._drive(journal, context, starts_queued=starts_queued))

    def end_now(self, journal: RunJournal, ending: Ending) -> None:
        """End the run without driving it further, under a claim of its own."""
        self._begin(journal, self._end(journal, ending))

    def _begin(self, journal: RunJournal, work: Coroutine[None, None, None]) -> None:
        # A callback, not a `finally` in the work: a task that is cancelled before its first line runs none.
        self._journal = journal
        self._task = asyncio.create_task(work, name=self.run_id)
        self._task.add_done_callback(lambda task: self._leave(journal, task))

    async def _drive(
        self, journal: RunJournal, context: RequestContext | None, *, starts_queued: bool
    ) -> None:
        sink = self._sink(journal, starts_queued=starts_queued)
        try:
            if not await self._wait_for_client():
                await sink.end(_failed("server_restarted", "The server restarted; send the request again."))
                return
            with self._stop.breakable():
                await self._place.start()
            await self._mend(journal)
            if self.taken_over:
                reach("recovery.mended")
            await run_response_loop(
                journal,
                FrozenTools(self._parts.tools, self.frozen),
                context or RequestContext(self.frozen.request.model),
                self._parts.inference,
                event_sink=sink,
                request_id=self.run_id,
                config=self._parts.loop_config,
            )
        except RunStoppedError as stopped:
            await self._stopped(journal, sink, stopped.reason)
        except (LoopStoreError, StoreError) as error:
            self._lost(journal, error)
        except LoopError:
            pass  # the sink has told how it ended
        except Exception as error:
            log.exception("run_failed", response_id=self.response_id)
            await self._end(journal, _failed("server_error", f"The server failed: {type(error).__name__}."))

    async def _mend(self, journal: RunJournal) -> None:
        """Mend the chain, as soon as the store can be read."""
        while True:
            try:
                return await mend_chain(journal, self._parts.store)
            except StoreUnavailableError as error:
                log.warning("run_not_mended_yet", response_id=self.response_id, error=str(error))
            with self._stop.breakable():
                await asyncio.sleep(MEND_AGAIN_S)

    async def _end(self, journal: RunJournal, ending: Ending) -> None:
        try:
            await self._sink(journal, starts_queued=False).end(ending)
        except StoreError as error:
            self._lost(journal, error)

    def _sink(self, journal: RunJournal, *, starts_queued: bool) -> JournalSink:
        return JournalSink(
            journal, self._stop, self._parts.clock, starts_queued=starts_queued, ended=self._ended
        )

    def note_admitted(self) -> None:
        """The run is written down: its id may be told."""
        if not self.admitted.done():
            self.admitted.set_result(None)

    def _ended(self, ending: Ending, body: bytes) -> None:
        metrics.RESPONSES.labels(ending.status).inc()
        log.info("response_ended", response_id=self.response_id, status=ending.status)
        self.note_admitted()
        if not self.finished.done():
            self.finished.set_result(Finished(ending.status, body, ending.error))

    async def _stopped(self, journal: RunJournal, sink: JournalSink, reason: str) -> None:
        if reason == DISCONNECTED:
            await sink.end(Ending(status="cancelled"))
            return
        if journal.writing == "durable":
            hand_back(journal)
            with contextlib.suppress(StoreError):
                await journal.written()
        self._lost(journal, ServerStoppingError("The server stops; the work goes on in the next process."))

    def _lost(self, journal: RunJournal, error: Error) -> None:
        """This process can say no more of the run (unless it has claimed it anew meanwhile)."""
        if journal is not self._journal:
            return
        cause = error.__cause__ if isinstance(error.__cause__, Error) else error
        for future in (self.admitted, self.finished):
            if not future.done():
                future.set_exception(cause)
        self.channel.close()

    def _leave(self, journal: RunJournal, task: "asyncio.Task[None]") -> None:
        failure = None if task.cancelled() else task.exception()
        if journal is not self._journal:
            return
        if not self.finished.done():  # killed, or broken by what nobody foresaw: whoever waits hears of it
            error: Error = ServerStoppingError("The work on this response was broken off.")
            if failure is not None:
                log.error("run_broken", response_id=self.response_id, exc_info=failure)
                error = self.broken_by = Error(f"The server failed: {type(failure).__name__}.")
            self._lost(journal, error)
        self._go()

    def _go(self) -> None:
        self._cancel_grace()
        self.channel.close()  # after its terminal event, if it has one
        self._place.leave()
        self._left(self)

    # --- readers and clients -------------------------------------------------------------------

    @contextlib.contextmanager
    def reading(self) -> Iterator["Connection"]:
        """A connection of the response's client, as long as it is there."""
        connection = Connection()
        self.readers += 1
        self._attached.set()
        self._cancel_grace()
        try:
            yield connection
        finally:
            self.readers -= 1
            if self.readers == 0 and not connection.closed_by_us:
                self._last_reader_left()

    def _last_reader_left(self) -> None:
        durability = self._parts.durability
        if self.mode == "background" or self.finished.done() or durability.on_disconnect == "continue":
            return
        loop = asyncio.get_running_loop()
        self._grace = loop.call_later(durability.grace_s, self._stop.request, DISCONNECTED)

    def _cancel_grace(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    async def _wait_for_client(self) -> bool:
        """A plain foreground response of a dead process waits for its client's retry."""
        if self.held_s is None:
            return True
        with self._stop.breakable(), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.held_s):
                await self._attached.wait()
        return self._attached.is_set()

    # --- being stopped -------------------------------------------------------------------------

    def stop(self) -> None:
        """Hand the work back: break off what is safe to run again, let `once` calls end.

        Readers are sent on to the next process at once.
        """
        self.channel.close()
        self._cancel_grace()
        self._stop.request(SHUTDOWN, break_keyed=True)

    async def write_down(self) -> None:
        """Write at once what would have been written at the end: something else depends on it."""
        if self._journal is not None and self._journal.writing == "deferred":
            self._journal.writing = "durable"
            await self.settled()

    async def settled(self) -> None:
        """Return when what has happened so far is written, or after a moment when it cannot be."""
        journal = self._journal
        if journal is not None:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    await journal.written()

    def abandon(self) -> None:
        """The claim is taken anew: this one writes and publishes nothing more, and its task ends."""
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.die(ClaimLost("The run was claimed anew."))
        self.kill()

    def give_up(self, error: Error) -> None:
        """The run, abandoned, could not be brought back: whoever waits hears why, and its place is free."""
        for future in (self.admitted, self.finished):
            if not future.done():
                future.set_exception(error)
        self._go()

    def journal_died(self, journal: RunJournal, error: Error) -> None:
        """Called by a journal that can write no more."""
        if journal is self._journal:
            if not isinstance(error, ClaimLost | DuplicateResponseError | StoreUnavailableError):
                self.broken_by = error
            self._lost(journal, error)
            self.kill()

    async def gone(self) -> None:
        """Return when the task has ended."""
        if self._task is not None:
            await asyncio.wait({self._task})

    def kill(self) -> None:
        """End the task at once, whatever it does: its open steps are a recovery's work."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()


def hand_back(journal: RunJournal) -> None:
    """Requeue what is safe to run again and give up the claim. Open `once` calls stay in doubt."""
    for step in journal.chain.steps():
        if step.state is StepState.PROCESSING and (
            step.kind is StepKind.MODEL_CALL or step.request.get("effect") != ToolEffect.ONCE
        ):
            journal.requeue(step.id)
    journal.release()


def _failed(code: str, message: str) -> Ending:
    return Ending(status="failed", error=error_payload({"code": code, "message": message}))


def _seen(future: "asyncio.Future[Any]") -> None:
    """Mark an exception as seen: not every run has somebody who waits."""
    if not future.cancelled():
        future.exception()
