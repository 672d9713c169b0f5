"""The seams of the loop: who keeps its chain, and who hears its events."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Any, Protocol

import msgspec

from antiphon.core.narration import Narrator
from antiphon.domain.actions import NextAction, StepDescriptor
from antiphon.domain.events import Event
from antiphon.domain.steps import ChainStep, RecordedStep, StepId
from antiphon.engine.stopping import StopSignal


class LoopConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one loop. Depth counts nested scopes, iterations the model calls of one scope.

    `parallel_tools` bounds tool calls at once, `model_attempts` tries at an answer that broke off,
    `tool_heartbeat_s` is the pause between signs of life of a running tool, in seconds.
    """

    max_response_step_depth: int = 8
    max_response_iterations: int = 10
    parallel_tools: int = 16
    model_attempts: int = 3
    tool_heartbeat_s: float = 60.0


class MultiStepStore(Protocol):
    """What the loop needs of whoever keeps its chain. Safe for many tasks at once."""

    async def next_action_for(self, request_id: str, scope_parent: StepId | None) -> NextAction:
        """The transition for one scope, from the chain as stored."""
        ...

    async def record_step(
        self,
        request_id: str,
        scope_parent: StepId | None,
        prev_step: StepId | None,
        descriptor: StepDescriptor,
    ) -> RecordedStep:
        """Insert-or-get in `pending`, the sequence allotted in the same statement."""
        ...

    async def mark_step_processing(self, step_id: StepId) -> None:
        """The step's request is about to leave: returns once that is written."""
        ...

    async def complete_step(self, step_id: StepId, response: Any) -> None:
        """The step has ended with a result."""
        ...

    async def fail_step(self, step_id: StepId, error: Any) -> None:
        """The step has ended with an error."""
        ...

    async def list_chain(self, request_id: str, scope_parent: StepId | None) -> list[ChainStep]:
        """One scope, by sequence."""
        ...

    async def assemble_response(self, request_id: str) -> dict[str, Any]:
        """The Response JSON, from completed steps alone."""
        ...


class RetryingStore(ABC):
    """What a `MultiStepStore` also is when it can try a step again, taking back what was told of it."""

    @abstractmethod
    async def retry_step(self, step_id: StepId) -> int:
        """`processing` to `pending`, its events struck; gives the number of the next attempt."""

    @abstractmethod
    def may_retry(self, step_id: StepId) -> bool:
        """False when what the attempt told cannot be taken back."""

    @abstractmethod
    def attempt_of(self, step_id: StepId) -> int:
        """How often the step has been tried before."""


class EventSink(Protocol):
    """Who hears the events of a run, in order. `emit` may be a coroutine function."""

    def emit(self, event: Event) -> Awaitable[None] | None:
        """Take one event."""
        ...


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a response ends."""

    status: str
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, Any] | None = None


class ResponseSink(ABC):
    """An event sink that also opens and closes the response: the engine's own, or a plain one wrapped."""

    narrator: Narrator
    stop: StopSignal

    @abstractmethod
    async def begin(self) -> None:
        """The loop starts."""

    @abstractmethod
    async def flush(self) -> None:
        """Called between events: a place to wait while too much is unwritten."""

    @abstractmethod
    def enter_step(self, step_id: StepId | None) -> None:
        """Events from here on tell of this model call's attempt (None: of no attempt)."""

    @abstractmethod
    async def end(self, ending: Ending) -> None:
        """The loop has ended; tells the one terminal event."""
