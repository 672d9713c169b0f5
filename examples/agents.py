"""Agents as tools, and tools that know who asks: an executor of your own.

    OPENAI_BASE_URL=http://localhost:11434/v1 python examples/agents.py MODEL

A tool of kind `agent` is not executed but driven, in a scope of its own, with its own instructions and
tools. Its words stay out of the parent's stream; its tokens are counted in the parent's usage.
"""

import asyncio
import os
import sys
from typing import Any

import msgspec

from antiphon import Engine, RequestContext, ToolEffect, ToolError, ToolKind, ToolSchema

TEXT = {"type": "string"}
ARTICLE = {"type": "string", "enum": ["lamp", "chair"]}


class Tenant(msgspec.Struct, frozen=True):
    """Whatever your program wants its tools to see; it never leaves the process."""

    name: str
    stock: dict[str, int]


class Warehouse:
    """A `ToolExecutor`: a tool that reads the tenant's stock, and a clerk who may use it."""

    def __init__(self, model: str) -> None:
        self.model = model

    async def tools(self, ctx: RequestContext) -> list[ToolSchema]:
        return [
            ToolSchema(
                name="stock",
                description="How many of an article there are.",
                parameters={"type": "object", "properties": {"article": ARTICLE}, "required": ["article"]},
                effect=ToolEffect.PURE,
            ),
            ToolSchema(
                name="clerk",
                description="A clerk who knows the warehouse. Ask in plain words.",
                parameters={"type": "object", "properties": {"question": TEXT}, "required": ["question"]},
                kind=ToolKind.AGENT,
                agent={"model": self.model, "instructions": "You are a clerk. Be brief.", "tools": ["stock"]},
            ),
        ]

    async def execute(
        self, tool_name: str, tool_call_id: str, arguments: dict[str, Any], ctx: RequestContext
    ) -> Any:
        tenant = ctx.extension(Tenant)
        if tenant is None:
            raise ToolError.ExecutionError("nobody is logged in")
        return {"article": arguments["article"], "count": tenant.stock.get(arguments["article"], 0)}


async def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "rehearsal"
    upstream = os.environ.get("OPENAI_BASE_URL", "http://localhost:11434/v1")
    tenant = Tenant("acme", {"lamp": 7})
    async with Engine(store="memory:", upstream=upstream, tools=[Warehouse(model)]) as engine:
        response = await engine.responses.create(
            model=model,
            input='Use clerk(question="Use stock to count the lamps, please.").',
            tool_choice={
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "clerk"}],
            },
            context=RequestContext(model).with_extension(tenant),
        )
        print(response.output_text)
        for step in await engine.steps(response.id):
            indent = "  " if step.parent_step_id else ""
            print(f"{indent}{step.step_kind} {step.state}")


if __name__ == "__main__":
    asyncio.run(main())
