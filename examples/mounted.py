"""The HTTP side of an engine inside an application of your own, under a prefix.

    OPENAI_BASE_URL=http://localhost:11434/v1 uvicorn --app-dir examples mounted:app

Then `OpenAI(base_url="http://localhost:8000/ai/v1")` is a client of it. The lifespan of a mounted
application is not run, so the application around it starts and stops the engine.
"""

import contextlib
import os
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from antiphon import Engine, create_app, tool


@tool(effect="pure")
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


engine = Engine(
    store=os.environ.get("STORE", "memory:"),
    upstream=os.environ.get("OPENAI_BASE_URL", "http://localhost:11434/v1"),
    tools=[weather],
)


@contextlib.asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[None]:
    async with engine:
        yield


async def home(_request: Request) -> PlainTextResponse:
    return PlainTextResponse("The rest of the application.")


app = Starlette(routes=[Route("/", home), Mount("/ai", app=create_app(engine))], lifespan=lifespan)
