"""A cancellation drops nothing that had happened, also when it was not written yet."""

import asyncio

import pytest

from antiphon import Engine, tool
from antiphon.domain.limits import Durability
from antiphon.testing import FakeUpstream, loop_script

pytestmark = pytest.mark.anyio


async def test_a_result_waiting_for_its_window_is_kept(tmp_path):
    """The tool had answered; a cancel in the same window shows its result, not a doubt."""
    answered = asyncio.Event()
    never = asyncio.Event()

    @tool(effect="once")
    async def quick(run: str, turn: int, index: int) -> str:
        answered.set()
        return f"done {run} {turn} {index}"

    @tool(effect="once")
    async def slow(run: str, turn: int, index: int) -> str:
        await never.wait()
        return f"never {run} {turn} {index}"

    script = loop_script(model_calls=2, tools=["quick", "slow"], per_turn=2)
    durability = Durability(flush_window_s=30.0)
    async with (
        FakeUpstream(script) as upstream,
        Engine(
            store=f"sqlite:///{tmp_path}/work.db",
            upstream=upstream.url + "/v1",
            tools=[quick, slow],
            durability=durability,
        ) as engine,
    ):
        made = await engine.responses.create(model="fake", input="go", background=True)
        await asyncio.wait_for(answered.wait(), 10)
        await asyncio.sleep(0)  # the tool returns; its result waits for the window
        ended = await asyncio.wait_for(engine.responses.cancel(made.id), 10)
        never.set()
    calls = {item["name"]: item for item in ended.output if item["type"] == "mcp_call"}
    assert calls["quick"]["output"].startswith("done ")
    assert "in doubt" in calls["slow"]["error"]["content"][0]["text"]
