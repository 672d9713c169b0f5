"""From where a model is to the client that asks it."""

import contextlib
from collections.abc import AsyncIterator

from antiphon.upstream.chat import ChatCompletionsClient
from antiphon.upstream.protocol import InferenceClient, UpstreamTarget


@contextlib.asynccontextmanager
async def client_for(target: UpstreamTarget | InferenceClient) -> AsyncIterator[InferenceClient]:
    """The client itself, or one for this target that lives as long as the block."""
    if not isinstance(target, UpstreamTarget):
        yield target
        return
    client = ChatCompletionsClient(target)
    try:
        yield client
    finally:
        await client.close()
