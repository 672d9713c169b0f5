"""Several executors as one.

A registry is itself a `ToolExecutor`. It checks arguments for executors that do not check their own,
and turns whatever happens into a `ToolError`, so that the loop has one kind of failure to know.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from antiphon.domain.errors import (
    ConfigurationError,
    ToolError,
    ToolExecutionError,
    ToolNotFoundError,
)
from antiphon.domain.tools import RequestContext, ToolCall, ToolResult, ToolSchema
from antiphon.observe.logs import get_logger
from antiphon.tools.dispatch import dispatch_call
from antiphon.tools.protocol import ToolExecutor
from antiphon.tools.validation import ArgumentsValidator

log = get_logger("antiphon.tools")


@runtime_checkable
class KnowsItsTools(Protocol):
    """An executor that offers the same tools to every request."""

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        """The tools on offer."""
        ...


class ToolRegistry:
    """Finds the executor that has a tool. A name belongs to one executor, for every request alike."""

    validates_arguments = True

    def __init__(self, executors: Sequence[ToolExecutor]) -> None:
        self._executors = tuple(executors)
        self._owners: dict[str, ToolExecutor] = {}
        self._validators: dict[str, tuple[dict[str, Any], ArgumentsValidator]] = {}
        for executor in self._executors:
            if isinstance(executor, KnowsItsTools):
                self._learn(executor, executor.schemas)

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        """The tools of those executors that offer the same to every request."""
        known = [each.schemas for each in self._executors if isinstance(each, KnowsItsTools)]
        return tuple(schema for schemas in known for schema in schemas)

    def has_tool(self, name: str) -> bool:
        """Whether a tool of this name is known: from the start, or since `tools` was last asked."""
        return name in self._owners

    async def tools(self, ctx: RequestContext) -> list[ToolSchema]:
        """All tools, in the order of the executors; raises `ConfigurationError` for a name in two."""
        offered: list[ToolSchema] = []
        for executor in self._executors:
            schemas = await executor.tools(ctx)
            self._learn(executor, schemas)
            offered.extend(schemas)
        return offered

    async def execute(self, tool_name: str, tool_call_id: str, arguments: Any, ctx: RequestContext) -> Any:
        """Run the tool where it lives; raises `ToolError` and nothing else."""
        if tool_name not in self._owners:
            await self.tools(ctx)
        owner = self._owners.get(tool_name)
        if owner is None:
            raise ToolNotFoundError(tool_name)
        if tool_name in self._validators:
            self._validators[tool_name][1].check(arguments)
        try:
            return await owner.execute(tool_name, tool_call_id, arguments, ctx)
        except ToolError:
            raise
        except Exception as error:
            log.warning("tool_failed", tool=tool_name, tool_call_id=tool_call_id, exc_info=True)
            raise ToolExecutionError(f"{type(error).__name__}: {error}") from error

    async def dispatch(self, call: ToolCall, ctx: RequestContext | None = None) -> ToolResult:
        """Run one call as the model wrote it. A tool's failure is a result too: the model reads it."""
        return await dispatch_call(self, call, ctx or RequestContext(), key=call.call_id)

    def _learn(self, executor: ToolExecutor, schemas: Sequence[ToolSchema]) -> None:
        for schema in schemas:
            owner = self._owners.setdefault(schema.name, executor)
            if owner is not executor:
                raise ConfigurationError(
                    f"two tools are named {schema.name!r}: one of {_named(owner)}, one of {_named(executor)}",
                    hint="rename one of them",
                )
            if getattr(executor, "validates_arguments", False):
                continue
            known = self._validators.get(schema.name)
            if known is None or known[0] != schema.parameters:
                self._validators[schema.name] = (schema.parameters, ArgumentsValidator(schema))


def _named(executor: ToolExecutor) -> str:
    return f"{type(executor).__name__} at {id(executor):#x}"
