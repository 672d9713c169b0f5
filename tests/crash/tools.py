"""Three tools, one of each effect, for servers that are killed; and one that kills.

Each call is on disk in the ledger with its key before it does anything, and again when it is done. How
long it takes follows from its arguments: 50 to 300 ms, times `CRASH_TOOL_PACE`.
"""

import asyncio
import os
import signal
import zlib

from antiphon import tool
from antiphon.testing import EffectLedger
from antiphon.tools.context import ToolContext

LEDGER_VARIABLE = "CRASH_LEDGER"
PACE_VARIABLE = "CRASH_TOOL_PACE"


async def _act(ctx: ToolContext, run: str, turn: int, index: int) -> dict[str, object]:
    ledger = EffectLedger(os.environ[LEDGER_VARIABLE])
    call = {"tool": ctx.tool_name, "key": ctx.idempotency_key}
    arguments = {"run": run, "turn": turn, "index": index}
    ledger.record(**call, arguments=arguments, phase="start")
    millis = 50 + zlib.crc32(f"{run}{turn}{index}".encode()) % 250
    await asyncio.sleep(millis / 1000 * float(os.environ.get(PACE_VARIABLE, "1")))
    ledger.record(**call, arguments=arguments, phase="end")
    return {"turn": turn, "index": index, "done_by": ctx.tool_name}


@tool(effect="pure")
async def look(ctx: ToolContext, run: str, turn: int, index: int) -> dict[str, object]:
    """Look something up. Looking twice does no harm."""
    return await _act(ctx, run, turn, index)


@tool(effect="idempotent")
async def put(ctx: ToolContext, run: str, turn: int, index: int) -> dict[str, object]:
    """Put something in its place. Under one key it is put there once."""
    return await _act(ctx, run, turn, index)


@tool(effect="once")
async def pay(ctx: ToolContext, run: str, turn: int, index: int) -> dict[str, object]:
    """Pay. Paying twice costs twice."""
    return await _act(ctx, run, turn, index)


@tool(effect="pure")
async def poison(ctx: ToolContext, run: str, turn: int, index: int) -> str:
    """Kill the server, every time."""
    arguments = {"run": run, "turn": turn, "index": index}
    EffectLedger(os.environ[LEDGER_VARIABLE]).record(
        tool="poison", key=ctx.idempotency_key, arguments=arguments
    )
    os.kill(os.getpid(), signal.SIGKILL)
    return "not reached"
