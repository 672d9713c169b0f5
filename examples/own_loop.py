"""The loop over a store of your own: `run_response_loop` drives `DictStore`, whose transition is its own.

    OPENAI_BASE_URL=http://localhost:11434/v1 python examples/own_loop.py MODEL

The first call is cut off in the middle of its tools; the second joins the chain and finishes it. The call
that had ended does not run again.
"""

import asyncio
import os
import sys
from typing import Any

from dict_store import DictStore

from antiphon import (
    ChainStep,
    Event,
    FunctionToolExecutor,
    LoopError,
    RequestContext,
    StoreError,
    UpstreamTarget,
    run_response_loop,
    tool,
)

PROMPT = 'Use weather(city="Oslo") and weather(city="Rome").'


@tool(effect="pure")
async def weather(city: str) -> str:
    """The weather of a city."""
    print(f"  (looking at the weather of {city})")
    return f"sunny in {city}"


class Printer:
    """An event sink that shows the answer as it comes."""

    def emit(self, event: Event) -> None:
        if event.type == "response.output_text.delta":
            print(event.to_dict()["delta"], end="", flush=True)
        elif event.is_terminal:
            print(f"\n{event.type}")


class LosesItsDisk(DictStore):
    """Fails once, when the second result is about to be written."""

    results = 0

    async def complete_step(self, step_id: str, response: Any) -> None:
        self.results += 1
        if self.results == 3:  # the model's answer, one tool, and now the other
            raise StoreError("the disk is gone")
        await super().complete_step(step_id, response)


async def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "rehearsal"
    base_url = os.environ.get("OPENAI_BASE_URL", "http://localhost:11434/v1")
    target = UpstreamTarget(base_url, "/chat/completions", os.environ.get("OPENAI_API_KEY"))
    tools = FunctionToolExecutor([weather])

    def ask(_agent: ChainStep | None) -> dict[str, Any]:
        return {
            "model": model,
            "input": [{"type": "message", "role": "user", "content": PROMPT}],
            "tools": [schema.as_function_tool() for schema in tools.schemas],
            "stream": True,
        }

    store = LosesItsDisk(ask)
    while True:
        try:
            await run_response_loop(
                store, tools, RequestContext(model), target, event_sink=Printer(), request_id="run_1"
            )
            break
        except LoopError.Store as error:
            print(f"cut off: {error}; again")
    for step in store.steps.values():
        print(f"{step.ordinal} {step.kind:10} {step.state}")


if __name__ == "__main__":
    asyncio.run(main())
