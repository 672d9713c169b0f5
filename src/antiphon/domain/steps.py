"""Steps: one unit of work inside a run, and the moves it may make.

A step is `pending` until the moment before its request leaves the process, `processing` while nobody
can know what its outside world has seen, and then ends once and for all:

    pending ──> processing ──> completed | failed | canceled
       │  ^          │
       │  └──────────┘  requeue (a retry, a hand-back)
       └──> failed | canceled

A step's identity is its place: (run, parent step, ordinal in that scope). Two attempts to write the
same step therefore meet; they never make two.
"""

from enum import StrEnum
from hashlib import sha256
from typing import Any

import msgspec

StepId = str

STEP_STEM_LENGTH = 24

_RUN_TAIL_LENGTH = 32
_HEXADECIMAL = frozenset("0123456789abcdef")


class StepKind(StrEnum):
    """What a step does. Parsing an unknown string raises `ValueError`."""

    MODEL_CALL = "model_call"
    TOOL_CALL = "tool_call"


class StepState(StrEnum):
    """Where a step stands. Parsing an unknown string raises `ValueError`."""

    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def is_terminal(self) -> bool:
        """True for the three states that never move again."""
        return self in TERMINAL_STATES


TERMINAL_STATES = frozenset({StepState.COMPLETED, StepState.FAILED, StepState.CANCELED})

LEGAL_MOVES: dict[StepState, frozenset[StepState]] = {
    StepState.PENDING: frozenset({StepState.PROCESSING, StepState.FAILED, StepState.CANCELED}),
    StepState.PROCESSING: frozenset(
        {StepState.COMPLETED, StepState.FAILED, StepState.CANCELED, StepState.PENDING}
    ),
    StepState.COMPLETED: frozenset(),
    StepState.FAILED: frozenset(),
    StepState.CANCELED: frozenset(),
}


def step_id_at(request_id: str, parent_step_id: str | None, ordinal: int) -> StepId:
    """The id of the step at this place: the same for every process and every attempt.

    It begins with the time of a run id of ours, so that what is written together lies together in every
    index of step and item ids; the rest is a digest of the place.
    """
    place = f"{request_id}|{parent_step_id or ''}|{ordinal}".encode()
    stem = _time_of(request_id) + sha256(place).hexdigest()
    return "step_" + stem[:STEP_STEM_LENGTH]


def short_step_id(step_id: StepId) -> str:
    """The 8 characters that people see: the last ones, since the first tell the time."""
    return step_id[-8:]


def _time_of(request_id: str) -> str:
    """The time in a run id, to a quarter of a second; nothing for ids from elsewhere."""
    tail = request_id.removeprefix("run_")
    return tail[1:10] if len(tail) == _RUN_TAIL_LENGTH and _HEXADECIMAL.issuperset(tail) else ""


class CreateStepInput(msgspec.Struct, frozen=True, kw_only=True):
    """What `create_step` needs. `id` is given by a caller that must know it before the commit.

    `request_payload` is any JSON value.
    """

    request_id: str
    ordinal: int
    step_kind: StepKind
    step_sequence: int
    request_payload: Any
    id: StepId | None = None
    prev_step_id: StepId | None = None
    parent_step_id: StepId | None = None


class ResponseStep(msgspec.Struct, frozen=True, kw_only=True):
    """One stored step. Times are Unix seconds; the state says which fields are present.

    `completed` has `response_payload` and no `error`, `failed` has `error` and no `response_payload`,
    `pending` has neither, and no `started_at`.
    """

    id: StepId
    request_id: str
    ordinal: int
    step_kind: StepKind
    step_sequence: int
    request_payload: Any
    state: StepState
    created_at: float
    updated_at: float
    prev_step_id: StepId | None = None
    parent_step_id: StepId | None = None
    response_payload: Any = None
    error: Any = None
    retry_attempt: int = 0
    started_at: float | None = None
    completed_at: float | None = None
    failed_at: float | None = None
    canceled_at: float | None = None


class ChainStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step as the loop sees it: one element of the chain of its scope."""

    id: StepId
    kind: StepKind
    state: StepState
    sequence: int
    request_payload: Any
    prev_step_id: StepId | None = None
    parent_step_id: StepId | None = None
    response_payload: Any = None
    error: Any = None
    ordinal: int = 0
    retry_attempt: int = 0


class RecordedStep(msgspec.Struct, frozen=True):
    """What `record_step` answers: the step at that place, new or already there."""

    id: StepId
    sequence: int
