"""The tools of the demo, run by the demo's server.

Each call is on disk in the ledger, with its idempotency key, before it does anything else: whatever
becomes of the server, the ledger tells what really happened.
"""

import asyncio
import os

from antiphon import ToolContext, tool
from antiphon.testing.effect_ledger import EffectLedger

LEDGER_VARIABLE = "ANTIPHON_DEMO_LEDGER"

_WORK_S = 0.2


def _ledger() -> EffectLedger:
    return EffectLedger(os.environ[LEDGER_VARIABLE])


@tool(effect="pure")
async def weather(ctx: ToolContext, city: str) -> dict[str, object]:
    """Tell the weather in a city.

    Args:
        city: The city's name.
    """
    _ledger().record(tool="weather", key=ctx.idempotency_key, arguments={"city": city})
    await asyncio.sleep(_WORK_S)
    return {"city": city, "sky": "clear", "celsius": 21}


@tool(effect="once")
async def book_ticket(ctx: ToolContext, destination: str) -> dict[str, object]:
    """Book a train ticket. Doing this twice would cost twice.

    Args:
        destination: Where the train goes.
    """
    _ledger().record(tool="book_ticket", key=ctx.idempotency_key, arguments={"destination": destination})
    await asyncio.sleep(_WORK_S)
    return {"destination": destination, "ticket": f"T-{ctx.idempotency_key[-6:]}", "seat": "12A"}
