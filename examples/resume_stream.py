"""A stream that survives its reader and its process: background work, followed by a cursor.

    OPENAI_BASE_URL=http://localhost:11434/v1 python examples/resume_stream.py MODEL

The engine is closed in the middle of the answer. The next one, which could be another process after a
crash, finishes the work, and the reader goes on behind the last event that it saw.
"""

import asyncio
import os
import sys

from antiphon import Engine, StreamCutError

STORE = "sqlite:///resume_stream.db"


async def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "rehearsal"
    upstream = os.environ.get("OPENAI_BASE_URL", "http://localhost:11434/v1")
    cursor = -1
    async with Engine(store=STORE, upstream=upstream) as engine:
        response = await engine.responses.create(model=model, input="Tell me a story.", background=True)
        async for event in await engine.responses.retrieve(response.id, stream=True):
            cursor = event.sequence_number
            if event.type == "response.output_text.delta":
                break
    print(f"the first engine is gone; the last event seen was number {cursor}")

    async with Engine(store=STORE, upstream=upstream) as engine:
        while True:
            try:
                events = await engine.responses.retrieve(response.id, stream=True, starting_after=cursor)
                async for event in events:
                    cursor = event.sequence_number
                break
            except StreamCutError as error:  # it had carried a torn answer: go on from the cursor
                print(f"cut off: {error}")
        whole = await engine.responses.retrieve(response.id)
        print(f"{whole.status} after event number {cursor}")
        print(whole.output_text)


if __name__ == "__main__":
    asyncio.run(main())
