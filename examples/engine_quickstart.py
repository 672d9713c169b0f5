"""The engine in your own program: durable responses with tools, without any server.

OPENAI_BASE_URL=http://localhost:11434/v1 python examples/engine_quickstart.py MODEL
"""

import asyncio
import os
import sys

from antiphon import Engine, tool


@tool(effect="pure")
def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Its name.
    """
    return f"sunny in {city}"


@tool  # the default effect is `once`: after a crash it is never silently run again
async def book(hut: str, nights: int = 1) -> dict[str, object]:
    """Book a mountain hut."""
    return {"hut": hut, "nights": nights, "booked": True}


async def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "rehearsal"
    upstream = os.environ.get("OPENAI_BASE_URL", "http://localhost:11434/v1")
    async with Engine(store="sqlite:///quickstart.db", upstream=upstream, tools=[weather, book]) as engine:
        first = await engine.responses.create(
            model=model, input='Use weather(city="Oslo") and book(hut="Gjendebu", nights=2).'
        )
        print(first.status, [item["type"] for item in first.output])
        print(first.output_text)

        events = await engine.responses.create(
            model=model, input="Sum it up for me.", previous_response_id=first.id, stream=True
        )
        async for event in events:
            if event.type == "response.output_text.delta":
                print(event.to_dict()["delta"], end="", flush=True)
        print()


if __name__ == "__main__":
    asyncio.run(main())
