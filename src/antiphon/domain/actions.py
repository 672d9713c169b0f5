"""What may come next: the closed union that the transition returns and the loop obeys."""

from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.domain.interruptions import Interruption
from antiphon.domain.steps import StepKind


class StepDescriptor(msgspec.Struct, frozen=True):
    """A step that should stand at `ordinal` of its scope. `request_payload` is what the step runs on."""

    kind: StepKind
    request_payload: Any
    ordinal: int


class AppendSteps(msgspec.Struct, frozen=True):
    """Run these, in parallel when there are several."""

    steps: Sequence[StepDescriptor]


class Complete(msgspec.Struct, frozen=True):
    """The scope has ended with this payload."""

    payload: Any


class Fail(msgspec.Struct, frozen=True):
    """The scope cannot go on; `error` is a JSON value with `code` and `message`."""

    error: Any


class Pause(msgspec.Struct, frozen=True):
    """Nothing can run until somebody answers."""

    interruptions: Sequence[Interruption]


NextAction = AppendSteps | Complete | Fail | Pause
