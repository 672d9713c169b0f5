"""The engine: one store, one writer, one loop, and the runs of this process.

    async with Engine(store="sqlite:///work.db", upstream="http://localhost:11434/v1", tools=[...]) as engine:
        response = await engine.responses.create(model="qwen3", input="Hello")

`responses` is the API for people, shaped like the official client's. The methods below it (`submit`,
`follow`, `retrieve`, `cancel`, …) are what it and the HTTP server are made of.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from antiphon.core.context import output_of
from antiphon.core.envelope import joined, with_output
from antiphon.core.reading import read_request
from antiphon.domain.crash_points import reach
from antiphon.domain.errors import (
    DuplicateResponseError,
    Error,
    InvalidRequestError,
    KeyReusedError,
    NotFoundError,
    ServerStoppingError,
)
from antiphon.domain.limits import Durability, Limits
from antiphon.domain.requests import Arrival, ResponseRequest
from antiphon.domain.responses import ENDED_STATUSES
from antiphon.domain.tools import RequestContext
from antiphon.engine.active import ActiveRun
from antiphon.engine.admission import admit
from antiphon.engine.adoption import Adopted, adopt, begin
from antiphon.engine.cancelling import Cancellations
from antiphon.engine.chain import RunChain
from antiphon.engine.committer import Committer
from antiphon.engine.context import new_id
from antiphon.engine.failures import error_payload
from antiphon.engine.following import Follower
from antiphon.engine.handle import ResponseHandle
from antiphon.engine.making import Upstream, executor_of, inference_of
from antiphon.engine.parts import ContextFactory, Parts
from antiphon.engine.protocol import Ending
from antiphon.engine.responses import Responses
from antiphon.engine.retries import Deliveries
from antiphon.engine.workload import Workload
from antiphon.observe import metrics
from antiphon.observe.logs import get_logger
from antiphon.store.opening import open_store
from antiphon.store.protocol import DEFAULT_PROJECT, Order, Page, ResponsePage, StepRow, Store, StoredResponse
from antiphon.tools.function import FunctionTool
from antiphon.tools.protocol import ToolExecutor
from antiphon.upstream.protocol import InferenceClient
from antiphon.upstream.routing import ModelRoute, Router

log = get_logger("antiphon.engine")

Tool = Callable[..., Any] | FunctionTool | ToolExecutor


class Engine:
    """Drives responses to their ends, durably. Use it as an async context manager.

    `store` is a URL (`sqlite:///file.db`, `memory:`) or a `Store`; `upstream` a base URL, an
    `UpstreamTarget` or an `InferenceClient`; `tools` are functions marked with `@tool`, or executors.
    `models` gives aliases their own tools. `context_factory` makes the `RequestContext` anew whenever a
    run is claimed.
    """

    def __init__(
        self,
        *,
        store: str | Store = "sqlite:///antiphon.db",
        upstream: Upstream,
        tools: Sequence[Tool] = (),
        models: Mapping[str, ModelRoute] | None = None,
        limits: Limits | None = None,
        durability: Durability | None = None,
        context_factory: ContextFactory | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.limits = limits or Limits()
        self.durability = durability or Durability()
        self.store: Store = open_store(store) if isinstance(store, str) else store
        self.tools: ToolExecutor = executor_of(tools)
        self.inference: InferenceClient = inference_of(upstream, models)
        self.responses = Responses(self)
        self.active: dict[str, ActiveRun] = {}
        self.unclaimable: list[str] = []
        self._owns_inference = self.inference is not upstream
        self._context_factory = context_factory
        self._clock = clock
        self._deliveries = Deliveries()
        self._cancellations = Cancellations()
        self._stopping = False
        self._parts: Parts | None = None

    # --- life ----------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Open the store and take over what a former process left unfinished."""
        await self.store.open()
        committer = Committer(self.store, window_s=self.durability.flush_window_s)
        self._stopping = False
        self._parts = Parts(
            store=self.store,
            committer=committer,
            inference=self.inference,
            tools=self.tools,
            limits=self.limits,
            durability=self.durability,
            workload=Workload(self.limits),
            clock=self._clock,
            owner=f"{os.getpid()}-{new_id('boot')}",
            context_factory=self._context_factory,
        )
        committer.start()
        if self.durability.recovery:
            try:
                await self._take_over()
            except BaseException:
                await self.close()
                raise

    def begin_stop(self) -> None:
        """Take no new work, and hand back what is at work. Returns at once; `close` waits."""
        self._stopping = True
        for run in list(self.active.values()):
            run.stop()

    async def close(self) -> None:
        """Hand back the work, write what is waiting, and close the store."""
        if self._parts is None:
            return
        self.begin_stop()
        runs = list(self.active.values())
        if runs:
            gone = [asyncio.ensure_future(run.gone()) for run in runs]
            _, late = await asyncio.wait(gone, timeout=self.durability.shutdown_grace_s)
            for run in runs if late else ():
                run.kill()
            await asyncio.gather(*gone)
        await self._cancellations.close()
        await self._parts.committer.close()
        await self.store.close()
        if isinstance(self.inference, Router) and self._owns_inference:
            await self.inference.close()
        self._parts = None

    @property
    def is_running(self) -> bool:
        """True between `start` and `close`."""
        return self._parts is not None

    @property
    def parts(self) -> Parts:
        """What runs share; only while the engine is running."""
        if self._parts is None:
            raise ServerStoppingError("The engine is not running; use it inside `async with`.")
        return self._parts

    async def _take_over(self) -> None:
        claimed = await self.store.take_over(self.parts.owner)
        if claimed:
            reach("recovery.after_claim")
        for stored in claimed:
            adopted = await adopt(self.parts, stored, left=self._run_left)
            if adopted.missing:
                log.warning("run_unclaimable", response_id=stored.response_id, missing=adopted.missing)
                await self._set_aside(adopted)
                continue
            metrics.RECOVERED.inc()
            log.info("run_taken_over", response_id=stored.response_id, takeovers=stored.takeovers)
            adopted.run.taken_over = True
            self.active[stored.response_id] = adopted.run
            await self._resume(adopted)

    async def _set_aside(self, adopted: Adopted) -> None:
        """Leave a run to a process that can drive it."""
        self.unclaimable.append(adopted.stored.response_id)
        adopted.journal.release()
        await adopted.journal.written()
        adopted.place.leave()

    async def _resume(self, adopted: Adopted) -> None:
        run, stored = adopted.run, adopted.stored
        if stored.cancel_requested:
            run.end_now(adopted.journal, Ending(status="cancelled"))
        elif stored.takeovers > self.durability.max_takeovers and stored.state != "queued":
            message = f"The response was taken over {stored.takeovers} times without progress."
            error = {"code": "recovery_exhausted", "message": message}
            run.end_now(adopted.journal, Ending(status="failed", error=error))
        else:
            if stored.mode == "foreground" and not stored.keyed:
                run.held_s = self.durability.grace_s
            factory = self._context_factory
            try:
                context = None if factory is None else await factory(stored)
            except Exception:  # the embedding program's own code: one run must not stop the start
                log.exception("context_not_made", response_id=stored.response_id)
                del self.active[stored.response_id]
                await self._set_aside(adopted)
                return
            run.start(adopted.journal, context, starts_queued=stored.state == "queued")

    def _run_left(self, run: ActiveRun) -> None:
        if self.active.get(run.response_id) is run:
            del self.active[run.response_id]
        if run.broken_by is not None and not run.is_given_up:
            self._cancellations.begin(run.response_id, self._give_up(run, run.broken_by))

    async def _give_up(self, run: ActiveRun, error: Error) -> None:
        """An entry of this run was refused, or its task broke: what is written of it ends as failed."""
        seized = await self.store.seize(run.run_id, self.parts.owner)
        if seized is None:
            return
        adopted = await adopt(self.parts, seized, left=self._run_left)
        adopted.run.is_given_up = True
        self.active[seized.response_id] = adopted.run
        adopted.run.end_now(adopted.journal, Ending(status="failed", error=error_payload(error)))
        await asyncio.shield(adopted.run.finished)

    # --- responses -----------------------------------------------------------------------------

    def read(self, wire: Any) -> ResponseRequest:
        """A checked request from the JSON object of `POST /v1/responses`."""
        return read_request(wire, new_id)

    async def submit(
        self,
        request: ResponseRequest,
        arrival: Arrival | None = None,
        context: RequestContext | None = None,
    ) -> ResponseHandle:
        """Admit a request, or find the response that it already has; raises `RequestError`.

        The run is under way when this returns; `ResponseHandle.admitted` waits until that is durable.
        """
        arrival = arrival or Arrival()
        self._check_not_stopping()
        if arrival.idempotency_key is not None and not request.store:
            raise InvalidRequestError(
                "An Idempotency-Key needs store: true: without it nothing is kept that a key could find.",
                param="store",
                code="invalid_parameter",
            )
        if (found := await self._found_again(request, arrival)) is not None:
            return found
        place = self.parts.workload.admit()
        try:
            given = context or RequestContext(request.model)
            admitted = await admit(self.parts, request, arrival, given)
            self._check_not_stopping()  # told so meanwhile: nobody would hand this run back
            run = begin(self.parts, admitted, arrival, place, given, left=self._run_left)
        except BaseException:
            place.leave()
            raise
        self.active[run.response_id] = run
        handle = ResponseHandle(self, run.response_id, arrival, run, fresh=True)
        if arrival.idempotency_key is not None:
            return await self._first_of_its_key(handle, request, arrival)
        return handle

    def _check_not_stopping(self) -> None:
        if self._stopping:
            raise ServerStoppingError("The server is stopping; send the request to the next process.")

    async def _found_again(self, request: ResponseRequest, arrival: Arrival) -> ResponseHandle | None:
        """The response of an earlier attempt at this request: by its key, or by its body for a retry."""
        if arrival.idempotency_key is not None:
            known = await self.store.find_by_key(arrival.project, arrival.idempotency_key)
            if known is None:
                return None
            response_id, digest = known
            if digest != arrival.body_digest:
                raise KeyReusedError(
                    "This Idempotency-Key was used with another body.",
                    param="Idempotency-Key",
                    hint="Use a new key for a new request.",
                )
        elif arrival.retry_count > 0 and request.store:
            found = await self._deliveries.find(self.store, self.active.values(), arrival, self.parts)
            if found is None:
                return None
            response_id = found
            log.info("retry_attached", response_id=response_id)
        else:
            return None
        return ResponseHandle(self, response_id, arrival, self.active.get(response_id))

    async def _first_of_its_key(
        self, handle: ResponseHandle, request: ResponseRequest, arrival: Arrival
    ) -> ResponseHandle:
        """Two requests with one key may race; the one whose commit came second joins the first."""
        try:
            await handle.admitted()
        except DuplicateResponseError:
            found = await self._found_again(request, arrival)
            if found is None:
                raise
            return found
        return handle

    def delivered(self, response_id: str) -> None:
        """The whole answer went to a connection that was still there: no retry will ask for it."""
        self._deliveries.note(response_id)

    def follow(self, response_id: str, arrival: Arrival, *, after: int = -1) -> Follower:
        """The events of a response after a cursor, from the log and then live."""
        run = self.active.get(response_id)
        return Follower(
            self.store,
            arrival.project,
            response_id,
            None if run is None else run.channel,
            after=after,
            inline_resets=arrival.inline_resets,
            logged=run is None or run.frozen.request.store,
            stopping=lambda: self._stopping,
        )

    async def find(self, response_id: str, project: str = DEFAULT_PROJECT) -> StoredResponse:
        """The response's row; `NotFoundError` when this project has none of this id."""
        stored = await self.store.read_response(project, response_id)
        if stored is None:
            raise NotFoundError(f"Response with id '{response_id}' not found.", param="response_id")
        return stored

    async def handle(self, response_id: str, arrival: Arrival) -> ResponseHandle:
        """A handle on a response that exists."""
        await self.find(response_id, arrival.project)
        return ResponseHandle(self, response_id, arrival, self.active.get(response_id))

    async def retrieve(self, response_id: str, project: str = DEFAULT_PROJECT) -> bytes:
        """The response as it stands, as JSON."""
        return await self.body_of(await self.find(response_id, project))

    async def body_of(self, stored: StoredResponse) -> bytes:
        """The whole JSON of a stored response; what has been written of it, while it runs."""
        if stored.status in ENDED_STATUSES:
            return with_output(stored.envelope, joined([item.data for item in stored.output]))
        chain = RunChain(await self.store.list_steps(stored.run_id))
        return with_output(stored.envelope, msgspec.json.encode(output_of(chain.scope(None))))

    async def failure_of(self, stored: StoredResponse) -> dict[str, Any] | None:
        """The error that a failed response ended with, as its step tells it: with its HTTP status."""
        if stored.status != "failed":
            return None
        told: dict[str, Any] = msgspec.json.decode(stored.envelope)["error"]
        for row in reversed(await self.store.list_steps(stored.run_id)):
            error = None if row.error is None else msgspec.json.decode(row.error)
            if error is not None and error.get("code") == told["code"]:
                return {**error, **told}
        return told

    async def cancel(self, response_id: str, project: str = DEFAULT_PROJECT) -> bytes:
        """Cancel a response and give it as it then stands. Idempotent; the first terminal commit wins."""
        stored = await self.find(response_id, project)
        if stored.status not in ENDED_STATUSES:
            await self._cancellations.join(response_id, lambda: self._cancel(stored))
        return await self.retrieve(response_id, project)

    async def _cancel(self, stored: StoredResponse) -> None:
        if (running := self.active.get(stored.response_id)) is not None:
            await running.settled()
        seized = await self.store.seize(stored.run_id, self.parts.owner, cancel=True)
        if seized is None:
            return
        reach("cancel.after_claim")
        if stored.response_id in self.unclaimable:
            self.unclaimable.remove(stored.response_id)
        active = self.active.get(stored.response_id)
        if active is not None:
            active.abandon()
        try:
            adopted = await adopt(self.parts, seized, left=self._run_left, into=active)
        except BaseException as error:
            if active is not None:
                active.give_up(error if isinstance(error, Error) else Error(f"Not read: {error!r}"))
            raise
        self.active[stored.response_id] = adopted.run
        adopted.run.end_now(adopted.journal, Ending(status="cancelled"))
        await asyncio.shield(adopted.run.finished)

    async def delete(self, response_id: str, project: str = DEFAULT_PROJECT) -> None:
        """Cancel what runs, and delete; the items stay as long as a later response descends from them."""
        await self.cancel(response_id, project)
        for run in list(self.active.values()):
            if run.frozen.request.previous_response_id == response_id:
                await run.write_down()  # else nothing would tell the store that what it follows must stay
        reach("delete.before")
        if not await self.store.delete_response(project, response_id):
            raise NotFoundError(f"Response with id '{response_id}' not found.", param="response_id")

    async def input_items(
        self,
        response_id: str,
        project: str = DEFAULT_PROJECT,
        *,
        limit: int = 20,
        after: str | None = None,
        order: Order = "desc",
    ) -> Page:
        """The input items of a response."""
        page = await self.store.input_items(project, response_id, limit=limit, after=after, order=order)
        if page is None:
            raise NotFoundError(f"Response with id '{response_id}' not found.", param="response_id")
        return page

    async def list_responses(
        self,
        project: str = DEFAULT_PROJECT,
        *,
        limit: int = 20,
        after: str | None = None,
        order: Order = "desc",
        status: str | None = None,
        prefix: str | None = None,
    ) -> ResponsePage:
        """The responses of a project, without output."""
        return await self.store.list_responses(
            project, limit=limit, after=after, order=order, status=status, prefix=prefix
        )

    async def steps(self, response_id: str, project: str = DEFAULT_PROJECT) -> Sequence[StepRow]:
        """All steps behind a response, by sequence."""
        stored = await self.find(response_id, project)
        return await self.store.list_steps(stored.run_id)

    async def models(self) -> list[str]:
        """The model names that can be asked for."""
        listing = getattr(self.inference, "models", None)
        return [] if listing is None else await listing()
