"""Steps as rows: what a row may hold, how it moves, and how it becomes the value that people see.

Pure, and shared by every store: a store that keeps rows some other way still answers alike.
"""

from typing import Any

import msgspec

from antiphon.domain.errors import (
    DuplicateStep,
    IllegalMoveError,
    SerializationError,
    StepAlreadyTerminal,
    StepNotFoundError,
    StoreError,
)
from antiphon.domain.steps import (
    LEGAL_MOVES,
    CreateStepInput,
    ResponseStep,
    StepId,
    StepKind,
    StepState,
    short_step_id,
    step_id_at,
)
from antiphon.store.protocol import StepRow

_TIME_OF = {
    StepState.PROCESSING: "started_at",
    StepState.COMPLETED: "completed_at",
    StepState.FAILED: "failed_at",
    StepState.CANCELED: "canceled_at",
}


class _Effect(msgspec.Struct):
    effect: Any = None


_decode_effect = msgspec.json.Decoder(_Effect).decode


def to_json(value: Any) -> bytes:
    """A JSON value as bytes; `SerializationError` when it is not one."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise SerializationError(f"not a JSON value: {error}") from error


def from_json(data: bytes | None) -> Any:
    """The JSON value of these bytes, None for none; `SerializationError` when they are not JSON."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise SerializationError(f"not JSON: {error}") from error


def new_row(step: CreateStepInput, now_s: float) -> StepRow:
    """The `pending` row of a step that somebody wants to create; its id follows from its place."""
    return StepRow(
        id=step.id or step_id_at(step.request_id, step.parent_step_id, step.ordinal),
        request_id=step.request_id,
        ordinal=step.ordinal,
        step_kind=step.step_kind,
        step_sequence=step.step_sequence,
        request_payload=to_json(step.request_payload),
        state=StepState.PENDING,
        created_at=now_s,
        updated_at=now_s,
        prev_step_id=step.prev_step_id,
        parent_step_id=step.parent_step_id,
    )


def step_of(row: StepRow) -> ResponseStep:
    """The row with its payloads decoded."""
    values = msgspec.structs.asdict(row)
    for name in ("request_payload", "response_payload", "error"):
        values[name] = from_json(values[name])
    return ResponseStep(**values)


def place_of(row: StepRow) -> tuple[str, str, int]:
    """A step's identity: run, parent step (empty at the top level), ordinal."""
    return row.request_id, row.parent_step_id or "", row.ordinal


def duplicate(place: StepRow, existing_id: StepId) -> DuplicateStep:
    """The error that tells who stands where `place` wanted to."""
    return DuplicateStep(
        f"step {short_step_id(existing_id)} has this id, or stands at ordinal {place.ordinal} of its scope",
        existing_id=existing_id,
    )


def refusal_of_move(row: StepRow | None, step_id: StepId, state: StepState) -> StoreError | None:
    """Why this step may not move to `state`, or None."""
    if row is None:
        return StepNotFoundError(f"no step has the id {step_id!r}")
    if row.state.is_terminal:
        return StepAlreadyTerminal(f"step {short_step_id(step_id)} is {row.state}; its first result stays")
    if state not in LEGAL_MOVES[row.state]:
        return IllegalMoveError(f"step {short_step_id(step_id)} cannot move from {row.state} to {state}")
    if state is StepState.PENDING and runs_once(row):
        return IllegalMoveError(
            f"step {short_step_id(step_id)} is a tool call with effect `once`: never run again on its own",
            hint="Find out whether the call happened, and complete or fail the step.",
        )
    return None


def runs_once(row: StepRow) -> bool:
    """True for a tool call whose request payload says `"effect": "once"`."""
    if row.step_kind is not StepKind.TOOL_CALL:
        return False
    try:
        return bool(_decode_effect(row.request_payload).effect == "once")
    except msgspec.DecodeError:
        return False


def moved(
    row: StepRow,
    state: StepState,
    now_s: float,
    *,
    response_payload: bytes | None = None,
    error: bytes | None = None,
) -> StepRow:
    """The row after a legal move."""
    changes: dict[str, Any] = {
        "state": state,
        "updated_at": now_s,
        "response_payload": response_payload,
        "error": error,
    }
    if state is StepState.PENDING:
        changes |= {"retry_attempt": row.retry_attempt + 1, "started_at": None}
    else:
        changes[_TIME_OF[state]] = now_s
    return msgspec.structs.replace(row, **changes)


def problem_of_row(row: StepRow) -> str | None:
    """What a row of this state may not hold, or lacks; None when it is sound."""
    answered, broken = row.response_payload is not None, row.error is not None
    match row.state:
        case StepState.PENDING if answered or broken or row.started_at is not None:
            return "a pending step has no response, no error and no start"
        case StepState.COMPLETED if broken or not answered:
            return "a completed step has a response and no error"
        case StepState.FAILED if answered or not broken:
            return "a failed step has an error and no response"
        case _:
            return None


def problem_of_replacement(old: StepRow | None, new: StepRow) -> str | None:
    """Why `new` cannot stand in place of `old`; None when it can.

    The place, kind and sequence of a step never change. An open step may keep its state and change
    the rest; a terminal one changes no more.
    """
    if old is None or _identity(old) != _identity(new):
        return f"no step {new.id!r} stands at this place"
    if old.state.is_terminal or (new.state is not old.state and new.state not in LEGAL_MOVES[old.state]):
        return f"the move from {old.state} to {new.state} is not legal"
    return problem_of_row(new)


def _identity(row: StepRow) -> tuple[Any, ...]:
    return row.id, row.request_id, row.ordinal, row.step_kind, row.step_sequence, row.parent_step_id
