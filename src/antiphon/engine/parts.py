"""What the runs of one engine share."""

from collections.abc import Awaitable, Callable

import msgspec

from antiphon.domain.errors import ToolNotFoundError
from antiphon.domain.limits import Durability, Limits
from antiphon.domain.requests import FrozenRequest
from antiphon.domain.tools import RequestContext, ToolSchema
from antiphon.engine.committer import Committer
from antiphon.engine.protocol import LoopConfig
from antiphon.engine.workload import Workload
from antiphon.store.protocol import Store, StoredRun
from antiphon.tools.protocol import ToolExecutor
from antiphon.upstream.protocol import InferenceClient

ContextFactory = Callable[[StoredRun], Awaitable[RequestContext]]


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The store, the writer, the model, the tools, the limits and the clock of one engine."""

    store: Store
    committer: Committer
    inference: InferenceClient
    tools: ToolExecutor
    limits: Limits
    durability: Durability
    workload: Workload
    clock: Callable[[], float]
    owner: str
    context_factory: ContextFactory | None = None

    @property
    def loop_config(self) -> LoopConfig:
        """The limits, as the loop knows them."""
        limits = self.limits
        return LoopConfig(
            max_response_step_depth=limits.max_depth,
            max_response_iterations=limits.max_iterations,
            parallel_tools=limits.parallel_tools,
            model_attempts=limits.model_attempts,
        )


class FrozenTools:
    """An executor that offers what was frozen at admission, and nothing that came later."""

    def __init__(self, executor: ToolExecutor, frozen: FrozenRequest) -> None:
        self._executor = executor
        self._schemas = list(frozen.server_tools)
        self._names = {schema.name for schema in frozen.server_tools}

    async def tools(self, ctx: RequestContext) -> list[ToolSchema]:  # noqa: ARG002 - asked once, at admission
        """The frozen set."""
        return self._schemas

    async def execute(
        self, tool_name: str, tool_call_id: str, arguments: object, ctx: RequestContext
    ) -> object:
        """Run a tool of the frozen set."""
        if tool_name not in self._names:
            raise ToolNotFoundError(tool_name)
        return await self._executor.execute(tool_name, tool_call_id, arguments, ctx)
