"""Checks of `ResponseStepStore`: steps one by one, for runs that the store knows nothing else of."""

import asyncio
import secrets
from typing import Any

from antiphon.domain.errors import (
    DuplicateStep,
    IllegalMoveError,
    SerializationError,
    StepAlreadyTerminal,
    StepNotFoundError,
)
from antiphon.domain.steps import CreateStepInput, StepId, StepKind, StepState
from antiphon.store.protocol import ResponseStepStore
from antiphon.testing.store_conformance.expect import raises, same, true


def _step(request_id: str, ordinal: int = 0, **changes: Any) -> CreateStepInput:
    values: dict[str, Any] = {
        "request_id": request_id,
        "ordinal": ordinal,
        "step_kind": StepKind.MODEL_CALL,
        "step_sequence": ordinal,
        "request_payload": {"model": "model-1"},
    }
    return CreateStepInput(**(values | changes))


def _request() -> str:
    return f"request_{secrets.token_hex(8)}"


async def _started(store: ResponseStepStore, step: CreateStepInput) -> StepId:
    step_id = await store.create_step(step)
    await store.mark_step_processing(step_id)
    return step_id


async def a_created_step_is_pending(store: ResponseStepStore) -> None:
    """A step begins `pending`, with what it was given and nothing else."""
    request_id = _request()
    given = _step(request_id, 3, step_sequence=7, prev_step_id="before", parent_step_id="above")
    step_id = await store.create_step(given)
    step = await store.get_step(step_id)
    if step is None:
        raise AssertionError("a step that was created is not there")
    same(step.state, StepState.PENDING, "the state")
    for name in ("request_id", "ordinal", "step_kind", "step_sequence", "prev_step_id", "parent_step_id"):
        same(getattr(step, name), getattr(given, name), name)
    same(step.request_payload, {"model": "model-1"}, "the payload")
    nothing = (step.response_payload, step.error, step.started_at, step.completed_at, step.failed_at)
    same(nothing, (None,) * 5, "what a pending step has not")
    same(step.retry_attempt, 0, "the attempt")
    true(step.created_at > 0 and step.updated_at == step.created_at, "a step knows when it was created")


async def a_given_id_is_kept(store: ResponseStepStore) -> None:
    """The id that the caller gives is the step's."""
    given = f"step_{secrets.token_hex(12)}"
    same(await store.create_step(_step(_request(), id=given)), given, "the id")
    true(await store.get_step(given), "the step is found under its id")


async def an_unknown_step_is_none(store: ResponseStepStore) -> None:
    """Reading what is not there gives None and empty lists."""
    same(await store.get_step("step_unknown"), None)
    same(await store.list_chain(_request()), [])
    same(await store.list_scope(_request(), None), [])


async def a_place_is_taken_once(store: ResponseStepStore) -> None:
    """A second step at a place is reported with the id of the first, and changes nothing."""
    request_id = _request()
    for parent in (None, "step_above"):
        first = await store.create_step(_step(request_id, 1, parent_step_id=parent))
        again = _step(
            request_id, 1, parent_step_id=parent, request_payload="other", id=f"step_{secrets.token_hex(4)}"
        )
        error = await raises(DuplicateStep, store.create_step(again))
        same(error.existing_id, first, "the step in the way")
        same((await store.list_scope(request_id, parent))[0].request_payload, {"model": "model-1"})
    same(len(await store.list_chain(request_id)), 2, "the steps of both scopes")
    await store.create_step(_step(_request(), 1))


async def an_id_is_taken_once(store: ResponseStepStore) -> None:
    """An id names one step, wherever the second would stand."""
    first = await store.create_step(_step(_request(), 0))
    error = await raises(DuplicateStep, store.create_step(_step(_request(), 5, id=first)))
    same(error.existing_id, first, "the step in the way")


async def one_of_a_hundred_creators_wins(store: ResponseStepStore) -> None:
    """Of many tasks that create the same place at once, exactly one does."""
    request_id = _request()

    async def create(number: int) -> StepId | None:
        try:
            return await store.create_step(_step(request_id, 0, request_payload=number))
        except DuplicateStep:
            return None

    created = [step_id for step_id in await asyncio.gather(*map(create, range(100))) if step_id]
    same(len(created), 1, "the creators that won")
    same([step.id for step in await store.list_chain(request_id)], created, "the chain")


async def a_chain_comes_by_sequence(store: ResponseStepStore) -> None:
    """`list_chain` gives every scope of one run by `step_sequence`, `list_scope` one scope of it."""
    request_id = _request()
    top = await store.create_step(_step(request_id, 0, step_sequence=0))
    other_top = await store.create_step(_step(request_id, 1, step_sequence=9))
    late = await store.create_step(_step(request_id, 1, step_sequence=5, parent_step_id=top))
    early = await store.create_step(_step(request_id, 0, step_sequence=2, parent_step_id=top))
    await store.create_step(_step(_request(), 0, step_sequence=1))
    ids = [step.id for step in await store.list_chain(request_id)]
    same(ids, [top, early, late, other_top], "the chain")
    same([step.id for step in await store.list_scope(request_id, None)], [top, other_top], "the top level")
    same([step.id for step in await store.list_scope(request_id, top)], [early, late], "the inner scope")


async def marking_starts_a_step_once(store: ResponseStepStore) -> None:
    """`mark_step_processing` sets `started_at`; past `pending` it does nothing and does not fail."""
    step_id = await _started(store, _step(_request()))
    started = await store.get_step(step_id)
    if started is None:
        raise AssertionError("the step is gone")
    same(started.state, StepState.PROCESSING, "the state")
    true(started.started_at, "a started step has a start")
    await store.mark_step_processing(step_id)
    same(await store.get_step(step_id), started, "the step after a second mark")
    await store.complete_step(step_id, 1)
    ended = await store.get_step(step_id)
    await store.mark_step_processing(step_id)
    same(await store.get_step(step_id), ended, "the ended step after a mark")


async def completing_needs_a_start(store: ResponseStepStore) -> None:
    """`processing` completes with its response; `pending` may not."""
    step_id = await store.create_step(_step(_request()))
    await raises(IllegalMoveError, store.complete_step(step_id, "early"))
    await store.mark_step_processing(step_id)
    await store.complete_step(step_id, {"text": "done"})
    step = await store.get_step(step_id)
    if step is None:
        raise AssertionError("the step is gone")
    same((step.state, step.response_payload, step.error), (StepState.COMPLETED, {"text": "done"}, None))
    true(step.completed_at and step.started_at, "a completed step knows its times")


async def open_steps_fail_and_cancel(store: ResponseStepStore) -> None:
    """`pending` and `processing` may both fail and be canceled."""
    request_id = _request()
    for ordinal, start in enumerate((False, True)):
        step_id = await store.create_step(_step(request_id, ordinal))
        if start:
            await store.mark_step_processing(step_id)
        await store.fail_step(step_id, {"code": "broken"})
        step = await store.get_step(step_id)
        same(
            step and (step.state, step.error, step.response_payload),
            (StepState.FAILED, {"code": "broken"}, None),
        )
        true(step and step.failed_at, "a failed step knows when")
    for ordinal, start in enumerate((False, True), start=2):
        step_id = await store.create_step(_step(request_id, ordinal))
        if start:
            await store.mark_step_processing(step_id)
        await store.cancel_step(step_id)
        step = await store.get_step(step_id)
        same(step and step.state, StepState.CANCELED)
        true(step and step.canceled_at, "a canceled step knows when")


async def a_terminal_step_keeps_its_first_result(store: ResponseStepStore) -> None:
    """Whatever is asked of a terminal step, it refuses, and its row stays as it was."""
    request_id = _request()
    ids = [await _started(store, _step(request_id, ordinal)) for ordinal in range(3)]
    await store.complete_step(ids[0], "first")
    await store.fail_step(ids[1], "first")
    await store.cancel_step(ids[2])
    before = await store.list_chain(request_id)
    for step_id in ids:
        await raises(StepAlreadyTerminal, store.complete_step(step_id, "second"))
        await raises(StepAlreadyTerminal, store.fail_step(step_id, "second"))
        await raises(StepAlreadyTerminal, store.cancel_step(step_id))
        await raises(StepAlreadyTerminal, store.requeue_step_for_retry(step_id))
        await store.mark_step_processing(step_id)
    same(await store.list_chain(request_id), before, "the terminal steps")


async def moves_of_unknown_steps_are_refused(store: ResponseStepStore) -> None:
    """Moving a step that is not there raises `StepNotFoundError`."""
    for call in (
        store.mark_step_processing("step_unknown"),
        store.complete_step("step_unknown", 1),
        store.fail_step("step_unknown", 1),
        store.cancel_step("step_unknown"),
        store.requeue_step_for_retry("step_unknown"),
    ):
        await raises(StepNotFoundError, call)


async def a_requeue_counts_an_attempt(store: ResponseStepStore) -> None:
    """`processing` goes back to `pending` with one attempt more and no start; `pending` may not."""
    step_id = await store.create_step(_step(_request()))
    await raises(IllegalMoveError, store.requeue_step_for_retry(step_id))
    for attempt in (1, 2):
        await store.mark_step_processing(step_id)
        await store.requeue_step_for_retry(step_id)
        step = await store.get_step(step_id)
        found = step and (step.state, step.retry_attempt, step.started_at)
        same(found, (StepState.PENDING, attempt, None), "the requeued step")


async def a_once_call_is_not_requeued(store: ResponseStepStore) -> None:
    """A `tool_call` that says `"effect": "once"` is never queued again; everything else is."""
    request_id = _request()
    once = await _started(
        store, _step(request_id, 0, step_kind=StepKind.TOOL_CALL, request_payload={"effect": "once"})
    )
    await raises(IllegalMoveError, store.requeue_step_for_retry(once))
    step = await store.get_step(once)
    same(step and (step.state, step.retry_attempt), (StepState.PROCESSING, 0), "the refused step")
    others: list[tuple[StepKind, Any]] = [
        (StepKind.TOOL_CALL, {"effect": "pure"}),
        (StepKind.TOOL_CALL, {"effect": "idempotent"}),
        (StepKind.TOOL_CALL, {"arguments": {"effect": "once"}}),
        (StepKind.TOOL_CALL, ["once"]),
        (StepKind.MODEL_CALL, {"effect": "once"}),
    ]
    for ordinal, (kind, payload) in enumerate(others, start=1):
        step_id = await _started(store, _step(request_id, ordinal, step_kind=kind, request_payload=payload))
        await store.requeue_step_for_retry(step_id)


async def one_of_many_endings_wins(store: ResponseStepStore) -> None:
    """Of many tasks that end a step at once, exactly one does, and its result is what stays."""
    step_id = await _started(store, _step(_request()))

    async def end(number: int) -> int | None:
        try:
            if number % 2:
                await store.complete_step(step_id, number)
            else:
                await store.fail_step(step_id, number)
        except StepAlreadyTerminal:
            return None
        return number

    winners = [number for number in await asyncio.gather(*map(end, range(50))) if number is not None]
    same(len(winners), 1, "the endings that won")
    step = await store.get_step(step_id)
    same(step and (step.response_payload if winners[0] % 2 else step.error), winners[0], "the result")


async def payloads_come_back_as_they_went(store: ResponseStepStore) -> None:
    """Any JSON value survives: NUL characters, all planes of Unicode, null, nesting."""
    values: list[Any] = [
        "nul \x00 inside",
        "🜂 ü \u2028",
        None,
        0,
        False,
        [],
        {},
        {"a": [1, 2.5, {"b": "\x00"}]},
        "x" * 100_000,
    ]
    request_id = _request()
    for ordinal, value in enumerate(values):
        step_id = await _started(store, _step(request_id, ordinal, request_payload=value))
        await store.complete_step(step_id, value)
    chain = await store.list_chain(request_id)
    same([step.request_payload for step in chain], values, "the request payloads")
    same([step.response_payload for step in chain], values, "the response payloads")


async def what_is_not_json_is_refused(store: ResponseStepStore) -> None:
    """A payload that is no JSON value raises `SerializationError`, and nothing is written."""
    request_id = _request()
    await raises(SerializationError, store.create_step(_step(request_id, request_payload=object())))
    same(await store.list_chain(request_id), [])
    step_id = await _started(store, _step(request_id))
    await raises(SerializationError, store.complete_step(step_id, object()))
    step = await store.get_step(step_id)
    same(step and step.state, StepState.PROCESSING, "the state")
