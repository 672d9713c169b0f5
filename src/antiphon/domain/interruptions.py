"""Interruptions: why a run waits for somebody.

One shape for every pause; readers must accept kinds that they do not know.
JSON is tagged by `type`.
"""

from enum import StrEnum
from typing import Any

import msgspec


class InterruptionPhase(StrEnum):
    """`before`: resuming runs the node. `after`: resuming does not run it again."""

    BEFORE = "before"
    AFTER = "after"


class Custom(msgspec.Struct, frozen=True, tag="custom"):
    """A question of the tool's own."""


class ApprovalPending(msgspec.Struct, frozen=True, tag="approval_pending"):
    """A tool call waits for a yes."""

    tool_use_id: str


class ScheduledPause(msgspec.Struct, frozen=True, tag="scheduled_pause"):
    """A pause asked for around a named tool or agent."""

    phase: InterruptionPhase
    node: str


InterruptionKind = Custom | ApprovalPending | ScheduledPause


class Interruption(msgspec.Struct, frozen=True, kw_only=True):
    """A question that holds back part of a run. `payload` is any JSON value."""

    kind: InterruptionKind
    payload: Any = None
    step_id: str | None = None
