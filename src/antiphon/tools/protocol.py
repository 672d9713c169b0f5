"""The seam between the loop and tools."""

from typing import Any, Protocol

from antiphon.domain.errors import ToolNotFoundError
from antiphon.domain.tools import RequestContext, ToolSchema


class ToolExecutor(Protocol):
    """Something that has tools and can run them. Safe for many tasks at once."""

    async def tools(self, ctx: RequestContext) -> list[ToolSchema]:
        """The tools on offer; asked once per request."""
        ...

    async def execute(self, tool_name: str, tool_call_id: str, arguments: Any, ctx: RequestContext) -> Any:
        """Run one tool and give back its result, a JSON value; raises `ToolError`.

        `arguments` is the decoded JSON object, already valid against the tool's schema.
        `tool_call_id` is the idempotency key of the call: the same for every attempt at it.
        """
        ...


class NoOpToolExecutor:
    """No tools at all: every call goes to the client."""

    async def tools(self, ctx: RequestContext) -> list[ToolSchema]:  # noqa: ARG002 - the protocol's signature
        """None."""
        return []

    async def execute(
        self,
        tool_name: str,
        tool_call_id: str,  # noqa: ARG002 - the protocol's signature
        arguments: Any,  # noqa: ARG002
        ctx: RequestContext,  # noqa: ARG002
    ) -> Any:
        """Refuse."""
        raise ToolNotFoundError(tool_name)
