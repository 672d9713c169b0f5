"""Model servers on this machine: who answers `GET /v1/models` on the usual ports."""

import asyncio
from collections.abc import Sequence

import aiohttp
import msgspec

USUAL_PORTS = ((11434, "Ollama"), (8000, "vLLM"), (8080, "llama.cpp"), (1234, "LM Studio"))
"""In order of preference, with the server that usually listens there."""

_WITHIN_S = 0.3


class LocalServer(msgspec.Struct, frozen=True):
    """A model server that was found, and the models it lists (at least one)."""

    name: str
    url: str
    models: tuple[str, ...]


class _Model(msgspec.Struct):
    id: str
    owned_by: str | None = None


class _Listing(msgspec.Struct):
    data: list[_Model]


async def find_local_server(
    *, except_port: int, ports: Sequence[tuple[int, str]] = USUAL_PORTS
) -> LocalServer | None:
    """The first server, in the order of the ports, that answers at once with a list of models."""
    timeout = aiohttp.ClientTimeout(total=_WITHIN_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        asked = [_ask(session, port, name) for port, name in ports if port != except_port]
        answers = await asyncio.gather(*asked)
    return next((server for server in answers if server is not None), None)


async def _ask(session: aiohttp.ClientSession, port: int, name: str) -> LocalServer | None:
    url = f"http://127.0.0.1:{port}/v1"
    try:
        async with session.get(f"{url}/models") as answer:
            listing = msgspec.json.decode(await answer.read(), type=_Listing)
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError):
        return None
    # Another Antiphon lists models too, and is no model server.
    models = tuple(each.id for each in listing.data if not (each.owned_by or "").startswith("antiphon"))
    return LocalServer(name, url, models) if models else None
