"""A loop of your own, from the step functions alone: a guardrail looks at every call before a tool runs.

    OPENAI_BASE_URL=http://localhost:11434/v1 python examples/guardrail_loop.py MODEL

The step functions hold no claim: this loop is yours, and nobody resumes it when the program dies. The
engine's own loop is made of the same functions and does; use it when a guardrail is not all that you need.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

from antiphon import (
    ChatCompletionsClient,
    ExecutionContext,
    FunctionToolExecutor,
    InferenceRequest,
    Item,
    Response,
    ToolCall,
    ToolResult,
    UpstreamTarget,
    assemble_response,
    call_inference,
    dispatch_tools,
    open_store,
    persist_response,
    rehydrate_conversation,
    tool,
)

MOST_ROUNDS = 5

Guardrail = Callable[[ToolCall], str | None]


@tool(effect="pure")
def balance(account: str) -> str:
    """The balance of an account."""
    return f"{account} holds 120 EUR"


@tool
def transfer(amount: int, to: str) -> str:
    """Transfer money."""
    return f"sent {amount} EUR to {to}"


def no_transfers(call: ToolCall) -> str | None:
    """A guardrail: why this call may not be made, or None."""
    return "Transfers need a human." if call.name == "transfer" else None


async def guarded(
    text: str, model: str, ctx: ExecutionContext, guardrail: Guardrail, previous: str | None = None
) -> Response:
    """One turn: ask the model, hold each of its calls against the guardrail, run what passes, ask again."""
    conversation = await rehydrate_conversation(previous, ctx)
    message_id = ctx.new_id("msg")
    message = {"id": message_id, "type": "message", "role": "user", "status": "completed",
               "content": [{"type": "input_text", "text": text}]}  # fmt: skip
    tools = [schema.as_function_tool() for schema in await ctx.tools.tools(ctx.request_context)]
    output: list[dict[str, Any]] = []
    for _ in range(MOST_ROUNDS):
        request = InferenceRequest(model=model, input=[message, *output], tools=tools)
        result = await call_inference(conversation, request, ctx)
        output += result.output
        if not result.tool_calls:
            break
        refused = {call.call_id: why for call in result.tool_calls if (why := guardrail(call))}
        ran = await dispatch_tools([call for call in result.tool_calls if call.call_id not in refused], ctx)
        told = [*ran, *(ToolResult(call_id, f"Refused: {why}") for call_id, why in refused.items())]
        output += [_output_item(each, ctx) for each in told]
    about_this_turn = {"previous_response_id": previous, "input_items": (Item(message_id, message),)}
    response = assemble_response(ctx.new_id("resp"), output, model, about_this_turn)
    await persist_response(response, None, previous, ctx)
    return response


def _output_item(result: ToolResult, ctx: ExecutionContext) -> dict[str, Any]:
    return {"id": ctx.new_id("fco"), "type": "function_call_output", "status": "completed",
            "call_id": result.call_id, "output": result.output}  # fmt: skip


async def main() -> None:
    """Two turns of a conversation with an assistant that would like to spend your money."""
    model = sys.argv[1] if len(sys.argv) > 1 else "rehearsal"
    base_url = os.environ.get("OPENAI_BASE_URL", "http://localhost:11434/v1")
    target = UpstreamTarget(base_url, "/chat/completions", os.environ.get("OPENAI_API_KEY"))
    store = open_store("memory:")
    await store.open()
    async with ChatCompletionsClient(target) as client:
        ctx = ExecutionContext(store, client, FunctionToolExecutor([balance, transfer]))
        wish = 'Use balance(account="savings") and transfer(amount=50, to="Eve"), please.'
        first = await guarded(wish, model, ctx, no_transfers)
        print(first.output_text)
        second = await guarded("What was refused?", model, ctx, no_transfers, first.id)
        print(second.output_text)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
