"""The loop: ask what comes next, do it, write it down, ask again.

`run_response_loop` is the only driver of a response in this program. Foreground, background, recovery,
sub-agents and library use call it with different stores and sinks. It holds no state that the chain does
not: it can be killed after every line and called again.

    while the store says AppendSteps:
        record every step            insert-or-get: a place exists once
        for each, in parallel:       mark processing (written before anything leaves) -> act -> end it

A model call that breaks in mid-answer is struck and tried again where the store can (`RetryingStore`).
A tool's failure is its step's result; the model hears of it, and the response goes on.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar, assert_never

import msgspec

from antiphon.core.context import text_of
from antiphon.core.narration import Narrator
from antiphon.domain.actions import AppendSteps, Complete, Fail, Pause, StepDescriptor
from antiphon.domain.crash_points import reach
from antiphon.domain.errors import (
    EmptyActionError,
    InferenceError,
    LoopError,
    LoopExecutorError,
    LoopFailedError,
    LoopInterruptedError,
    LoopStoreError,
    MaxDepthExceededError,
    MaxIterationsExceededError,
    RequestError,
    StoreError,
    ToolNotFoundError,
)
from antiphon.domain.ids import attempt_stem
from antiphon.domain.inference import InferenceRequest
from antiphon.domain.steps import RecordedStep, StepId, StepKind, StepState
from antiphon.domain.tools import RequestContext, ToolCall, ToolEffect, ToolKind, ToolResult, ToolSchema
from antiphon.engine.failures import error_payload, in_doubt_error
from antiphon.engine.functions import answer_of
from antiphon.engine.protocol import (
    Ending,
    EventSink,
    LoopConfig,
    MultiStepStore,
    ResponseSink,
    RetryingStore,
)
from antiphon.engine.sinks import PlainSink
from antiphon.engine.stopping import RunStoppedError
from antiphon.engine.targets import client_for
from antiphon.engine.telling import tell_tool_end
from antiphon.tools.dispatch import dispatch_call
from antiphon.tools.protocol import ToolExecutor
from antiphon.upstream.protocol import InferenceClient, UpstreamTarget

T = TypeVar("T")

TRANSIENT_TOOL_ERRORS = frozenset({"tool_timeout", "tool_execution_error"})


async def run_response_loop(
    store: MultiStepStore,
    tools: ToolExecutor,
    tool_context: RequestContext,
    model_target: UpstreamTarget | InferenceClient,
    *,
    event_sink: EventSink | ResponseSink | None = None,
    request_id: str,
    scope_parent: StepId | None = None,
    config: LoopConfig | None = None,
    depth: int = 0,
) -> Any:
    """Drive a response to its end and give the payload of `Complete`.

    Raises `LoopError.Failed` (the transition failed it), `.MaxIterationsExceeded`, `.MaxDepthExceeded`
    (called too deep), `.EmptyAction`, `.Interrupted` (somebody must answer first), `.Executor` (it cannot say
    what tools it has), `.Store` (the chain is left resumable). Durable exactly when the store is: called with
    a store of your own and no claim, nobody resumes it for you.
    """
    config = config or LoopConfig()
    if depth >= config.max_response_step_depth:
        raise MaxDepthExceededError(_too_deep(config))
    sink = event_sink if isinstance(event_sink, ResponseSink) else PlainSink(event_sink, store, request_id)
    async with client_for(model_target) as inference:
        schemas = await _schemas_of(tools, tool_context)
        loop = _Loop(store, tools, schemas, tool_context, inference, sink, request_id, config)
        try:
            return await _told(sink, lambda: loop.drive(scope_parent, depth))
        except StoreError as error:
            raise LoopStoreError(str(error)) from error


async def _schemas_of(tools: ToolExecutor, context: RequestContext) -> dict[str, ToolSchema]:
    try:
        return {schema.name: schema for schema in await tools.tools(context)}
    except Exception as error:
        raise LoopExecutorError(str(error)) from error


def _too_deep(config: LoopConfig) -> str:
    return f"Agents may be nested {config.max_response_step_depth} levels deep, not deeper."


async def _told(sink: ResponseSink, work: Callable[[], Awaitable[Any]]) -> Any:
    """Open the response, do the work, and tell how it ended; a failing store leaves it untold."""
    try:
        await sink.begin()
        payload = await work()
    except LoopFailedError as error:
        await sink.end(Ending(status="failed", error=error_payload(error.payload)))
        raise
    except MaxIterationsExceededError:
        await sink.end(Ending(status="incomplete", incomplete_details={"reason": "max_iterations"}))
        raise
    except EmptyActionError as error:
        await sink.end(Ending(status="failed", error=error_payload(error)))
        raise
    await sink.end(_ending_of(payload))
    return payload


def _ending_of(payload: Any) -> Ending:
    details = payload if isinstance(payload, dict) else {}
    status = details.get("status")
    return Ending(
        status=status if status in {"completed", "incomplete"} else "completed",
        incomplete_details=details.get("incomplete_details"),
    )


class _Loop:
    """One call of `run_response_loop`: what its scopes share."""

    def __init__(  # noqa: PLR0917 - one private call, from the function above
        self,
        store: MultiStepStore,
        tools: ToolExecutor,
        schemas: dict[str, ToolSchema],
        tool_context: RequestContext,
        inference: InferenceClient,
        sink: ResponseSink,
        request_id: str,
        config: LoopConfig,
    ) -> None:
        self._store = store
        self._retrying = store if isinstance(store, RetryingStore) else None
        self._tools = tools
        self._schemas = schemas
        self._context = tool_context
        self._inference = inference
        self._sink = sink
        self._request_id = request_id
        self._config = config
        self._tool_places = asyncio.Semaphore(config.parallel_tools)
        self._tools_of: dict[StepId, frozenset[str]] = {}

    async def drive(self, scope: StepId | None, depth: int) -> Any:
        """Drive one scope to its end."""
        chain = await self._kept(self._store.list_chain(self._request_id, scope))
        calls_made = sum(s.kind is StepKind.MODEL_CALL and s.state.is_terminal for s in chain)
        tool_rounds = 0
        previous = next((s.id for s in reversed(chain) if s.state.is_terminal), None)
        while True:
            self._sink.stop.check()
            action = await self._kept(self._store.next_action_for(self._request_id, scope))
            match action:
                case Complete(payload):
                    return payload
                case Fail(error):
                    raise LoopFailedError(error)
                case Pause(interruptions):
                    raise LoopInterruptedError(tuple(interruptions))
                case AppendSteps(steps):
                    if not steps:
                        raise EmptyActionError("The transition asked to append no steps.")
                    calls_made += sum(s.kind is StepKind.MODEL_CALL for s in steps)
                    tool_rounds += any(s.kind is StepKind.TOOL_CALL for s in steps)
                    if max(calls_made, tool_rounds) > self._config.max_response_iterations:
                        raise MaxIterationsExceededError(
                            f"The limit of {self._config.max_response_iterations} iterations is reached."
                        )
                    previous = await self._run_steps(scope, depth, previous, steps)
                case _:
                    assert_never(action)

    async def _run_steps(
        self, scope: StepId | None, depth: int, previous: StepId | None, steps: Sequence[StepDescriptor]
    ) -> StepId:
        recorded = [
            await self._kept(self._store.record_step(self._request_id, scope, previous, step))
            for step in steps
        ]
        if len(steps) == 1:
            await self._run_step(recorded[0], steps[0], scope, depth)
        else:
            await self._side_by_side(recorded, steps, scope, depth)
        return recorded[-1].id

    async def _side_by_side(
        self,
        recorded: Sequence[RecordedStep],
        steps: Sequence[StepDescriptor],
        scope: StepId | None,
        depth: int,
    ) -> None:
        """Run siblings at the same time. One that cannot go on does not take the others with it."""
        tasks: list[asyncio.Task[Exception | None]] = []
        async with asyncio.TaskGroup() as group:
            tasks += [
                group.create_task(_outcome(self._run_step(step, descriptor, scope, depth)))
                for step, descriptor in zip(recorded, steps, strict=True)
            ]
        for task in tasks:
            if (error := task.result()) is not None:
                raise error

    async def _run_step(
        self, step: RecordedStep, descriptor: StepDescriptor, scope: StepId | None, depth: int
    ) -> None:
        match descriptor.kind:
            case StepKind.MODEL_CALL:
                with self._sink.stop.breakable():
                    await self._model_call(
                        step.id, descriptor.request_payload, top=scope is None and depth == 0
                    )
            case StepKind.TOOL_CALL:
                async with self._tool_places if not self._is_agent(descriptor) else contextlib.nullcontext():
                    self._sink.stop.check()
                    await self._tool_call(step.id, descriptor.request_payload, depth, scope)
            case _:
                assert_never(descriptor.kind)

    def _is_agent(self, descriptor: StepDescriptor) -> bool:
        schema = self._schemas.get(descriptor.request_payload.get("name", ""))
        return schema is not None and schema.kind is ToolKind.AGENT

    async def _model_call(self, step_id: StepId, payload: Any, *, top: bool) -> None:
        request = (
            payload if isinstance(payload, InferenceRequest) else msgspec.convert(payload, InferenceRequest)
        )
        request = msgspec.structs.replace(request, idempotency_key=step_id)
        tries = 0
        while True:
            tries += 1
            await self._kept(self._store.mark_step_processing(step_id))
            try:
                await self._one_answer(step_id, request, top=top)
            except RequestError as error:  # it holds what no model server can be asked
                await self._kept(self._store.fail_step(step_id, error_payload(error)))
                return
            except InferenceError as error:
                again = error.torn and error.retryable and tries < self._config.model_attempts
                if not again or self._retrying is None or not self._retrying.may_retry(step_id):
                    await self._kept(self._store.fail_step(step_id, error_payload(error)))
                    return
                await self._kept(self._retrying.retry_step(step_id))
            else:
                return

    async def _one_answer(self, step_id: StepId, request: InferenceRequest, *, top: bool) -> None:
        narrator = self._sink.narrator if top else Narrator(None)
        attempt = self._retrying.attempt_of(step_id) if self._retrying else 0
        answer = answer_of(request, self._schemas, narrator, attempt_stem(step_id, attempt))
        if top:
            self._sink.enter_step(step_id)
        reach("model.before_request")
        events = self._inference.call(request)
        try:
            async for event in events:
                reach("model.first_event")
                answer.feed(event)
                await self._sink.flush()
        finally:
            await _aclose(events)
        if top:
            self._sink.enter_step(None)
        # No await suspends from here to the end of complete_step in a journal: the closing events and
        # the answer are one commit.
        reach("model.answered")
        payload = answer.close()
        await self._kept(self._store.complete_step(step_id, payload))
        await self._sink.flush()

    async def _tool_call(
        self, step_id: StepId, payload: dict[str, Any], depth: int, scope: StepId | None
    ) -> None:
        schema = self._schemas.get(payload["name"])
        result: ToolResult
        if scope in self._tools_of and payload["name"] not in self._tools_of[scope]:
            missing = ToolNotFoundError(payload["name"])
            result = ToolResult(payload["call_id"], str(missing), failed=True, error_code=missing.code)
        elif schema is not None and schema.kind is ToolKind.AGENT:
            self._tools_of[step_id] = frozenset((schema.agent or {}).get("tools") or ())
            result = await self._agent_call(step_id, payload, depth)
        else:
            effect = schema.effect if schema else ToolEffect.ONCE
            with self._guard(effect):
                result = await self._acting(step_id, payload, schema, top=scope is None and depth == 0)
        ended: dict[str, Any]
        if result.failed:
            ended = {"code": result.error_code or "tool_execution_error", "message": result.output}
            await self._kept(self._store.fail_step(step_id, ended))
        else:
            await self._kept(self._store.complete_step(step_id, {"output": result.output}))
        if scope is None and depth == 0:
            tell_tool_end(self._sink.narrator, payload, result)
        reach("tool.between_siblings")
        await self._sink.flush()

    def _guard(self, effect: ToolEffect) -> contextlib.AbstractContextManager[None]:
        if effect is ToolEffect.ONCE:
            return contextlib.nullcontext()
        return self._sink.stop.breakable(keyed=effect is ToolEffect.IDEMPOTENT)

    async def _acting(
        self, step_id: StepId, payload: dict[str, Any], schema: ToolSchema | None, *, top: bool
    ) -> ToolResult:
        """Run the tool, again while its effect and its retries allow."""
        effect = schema.effect if schema else ToolEffect.ONCE
        retries = schema.retries if schema and effect is not ToolEffect.ONCE else 0
        attempt = self._retrying.attempt_of(step_id) if self._retrying else 0
        call = ToolCall(
            payload.get("item_id", step_id), payload["call_id"], payload["name"], payload["arguments"]
        )
        while True:
            await self._kept(self._store.mark_step_processing(step_id))
            with self._signs_of_life(payload, told=top):
                reach("tool.before_call")
                result = await dispatch_call(self._tools, call, self._context, key=step_id, attempt=attempt)
                reach("tool.after_call")
            if not result.failed or result.error_code not in TRANSIENT_TOOL_ERRORS:
                return result
            if effect is ToolEffect.ONCE and result.error_code == "tool_timeout":
                return in_doubt_error(call.call_id, result.output)
            if retries <= 0:
                return result
            retries -= 1
            attempt = await self._kept(self._retrying.retry_step(step_id)) if self._retrying else attempt + 1

    @contextlib.contextmanager
    def _signs_of_life(self, payload: dict[str, Any], *, told: bool) -> Iterator[None]:
        """While a tool runs, repeat `response.mcp_call.in_progress` for clients with short patience."""
        if not told or not self._sink.narrator.listening or payload.get("output_index") is None:
            yield
            return
        heartbeat = _Heartbeat(self._sink.narrator, payload, self._config.tool_heartbeat_s)
        try:
            yield
        finally:
            heartbeat.timer.cancel()

    async def _agent_call(self, step_id: StepId, payload: dict[str, Any], depth: int) -> ToolResult:
        call_id = payload["call_id"]
        if depth + 1 >= self._config.max_response_step_depth:
            return ToolResult(
                call_id, _too_deep(self._config), failed=True, error_code=MaxDepthExceededError.default_code
            )
        await self._kept(self._store.mark_step_processing(step_id))
        try:
            ending = _ending_of(await self.drive(step_id, depth + 1))
        except (LoopFailedError, MaxIterationsExceededError, EmptyActionError) as error:
            return ToolResult(call_id, f"The agent failed: {error}", failed=True, error_code=error.code)
        chain = await self._kept(self._store.list_chain(self._request_id, step_id))
        last = [s for s in chain if s.kind is StepKind.MODEL_CALL and s.state is StepState.COMPLETED][-1:]
        text = text_of([i for s in last for i in s.response_payload["output"]])
        if ending.status == "completed":
            return ToolResult(call_id, text)
        reason = str((ending.incomplete_details or {}).get("reason", ending.status))
        message = f"The agent did not finish ({reason}). {text}".rstrip()
        return ToolResult(call_id, message, failed=True, error_code=reason)

    async def _kept(self, work: Awaitable[T]) -> T:
        """Await the store; whatever it raises ends the loop as `LoopError.Store`."""
        try:
            return await work
        except (LoopError, RunStoppedError):
            raise
        except StoreError as error:
            raise LoopStoreError(str(error)) from error


class _Heartbeat:
    """Repeats the sign of life of one running tool until its timer is cancelled."""

    def __init__(self, narrator: Narrator, payload: dict[str, Any], pause_s: float) -> None:
        self._narrator = narrator
        self._payload = payload
        self._pause_s = pause_s
        self.timer = asyncio.get_running_loop().call_later(pause_s, self._beat)

    def _beat(self) -> None:
        place = self._payload
        self._narrator.item_event("response.mcp_call.in_progress", place["item_id"], place["output_index"])
        self.timer = asyncio.get_running_loop().call_later(self._pause_s, self._beat)


async def _outcome(work: Awaitable[None]) -> Exception | None:
    """The exception that work ended with; a cancellation passes through."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - handed to the one who waits for all siblings
        return error
    return None


async def _aclose(events: Any) -> None:
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()
