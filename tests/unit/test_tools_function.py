"""`@tool` and the executor: calls, limits, failures."""

import asyncio
import datetime as dt
import inspect
import threading

import pytest

from antiphon.domain.errors import (
    ConfigurationError,
    ToolExecutionError,
    ToolInvalidArgumentsError,
    ToolNotFoundError,
    ToolTimeoutError,
)
from antiphon.domain.tools import RequestContext, ToolEffect
from antiphon.tools.context import ToolContext, current_attempt
from antiphon.tools.function import FunctionTool, FunctionToolExecutor, tool, tool_of

pytestmark = pytest.mark.anyio

CTX = RequestContext()


async def run(function, arguments=None, call_id="call_1", ctx=CTX):
    executor = FunctionToolExecutor([function])
    (schema,) = await executor.tools(ctx)
    return await executor.execute(schema.name, call_id, arguments or {}, ctx)


def test_the_decorated_function_stays_itself():
    """`@tool` returns the function: same signature, same calls, sync or async."""

    @tool
    def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    @tool(name="other", effect="pure", timeout=2.5, retries=3, max_concurrency=4)
    async def fetch() -> str:
        return "x"

    assert add(1, b=2) == 3
    assert str(inspect.signature(add)) == "(a: int, b: int = 1) -> int"
    assert inspect.iscoroutinefunction(fetch)
    assert tool_of(add).schema.name == "add"
    assert tool_of(add).schema.effect is ToolEffect.ONCE
    made = tool_of(fetch).schema
    assert (made.name, made.effect, made.timeout_s, made.retries, made.max_concurrency) == (
        "other",
        ToolEffect.PURE,
        2.5,
        3,
        4,
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retries": 1}, "effect is 'once'"),
        ({"effect": "twice"}, "effect must be one of pure, idempotent, once"),
        ({"name": "no spaces"}, "cannot be the name of a tool"),
        ({"name": "x" * 65}, "cannot be the name of a tool"),
        ({"timeout": 0}, "timeout must be"),
        ({"retries": -1, "effect": "pure"}, "retries must be"),
        ({"max_concurrency": 0}, "max_concurrency must be"),
    ],
)
def test_options_that_cannot_be(options, words):
    """A wrong option is refused where the tool is made."""
    with pytest.raises(ConfigurationError, match=words):
        tool(**options)(lambda: None) if "name" in options else tool(name="f", **options)(lambda: None)


def test_generators_are_refused():
    """A generator gives no single result."""

    def numbers():
        yield 1

    with pytest.raises(ConfigurationError, match="generator"):
        tool(numbers)


def test_a_tool_that_needs_approval_is_never_run_silently():
    """It can be declared, and registering it is refused."""

    @tool(needs_approval=True)
    def refund(order: int): ...

    assert tool_of(refund).needs_approval
    with pytest.raises(ConfigurationError, match="'refund' has needs_approval=True"):
        FunctionToolExecutor([refund])


def test_two_tools_of_one_name_are_refused_with_both_places():
    """The error names both functions."""

    def one(): ...
    def two(): ...

    with pytest.raises(
        ConfigurationError, match=r"test_tools_function\.py:\d+ and .*test_tools_function\.py:\d+"
    ):
        FunctionToolExecutor([FunctionTool.of(one, name="x"), FunctionTool.of(two, name="x")])


async def test_async_functions_are_awaited_on_the_loop():
    """No thread is used for an async function."""

    async def where():
        return threading.current_thread() is threading.main_thread()

    assert await run(where) is True


async def test_sync_functions_do_not_block_the_loop():
    """While a sync tool waits, the loop goes on: only so can the tool be let go."""
    release = threading.Event()
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def blocks():
        loop.call_soon_threadsafe(started.set)
        return release.wait(10)

    task = asyncio.ensure_future(run(blocks))
    await asyncio.wait_for(started.wait(), 10)
    release.set()
    assert await task is True


async def test_context_is_injected():
    """The context carries the request's extensions, the key, the attempt and the name."""
    seen = {}

    @tool
    def look(ctx: ToolContext, a: int):
        seen.update(
            user=ctx.request.extension(str), key=ctx.idempotency_key, attempt=ctx.attempt, name=ctx.tool_name
        )
        return a

    token = current_attempt.set(2)
    try:
        assert await run(look, {"a": 1}, "step_9", RequestContext().with_extension("ada")) == 1
    finally:
        current_attempt.reset(token)
    assert seen == {"user": "ada", "key": "step_9", "attempt": 2, "name": "look"}


async def test_invalid_arguments_name_the_path_and_the_function_is_not_called():
    """The model is told where the arguments are wrong; nothing runs."""
    called = []

    def order(items: list[dict[str, int]]):
        called.append(items)

    with pytest.raises(ToolInvalidArgumentsError, match=r"\$\.items\[0\]\.qty: .*integer"):
        await run(order, {"items": [{"qty": "two"}]})
    with pytest.raises(ToolInvalidArgumentsError, match=r'\$: "items" is a required property'):
        await run(order, {})
    with pytest.raises(ToolInvalidArgumentsError, match=r"\$: Additional properties"):
        await run(order, {"items": [], "more": 1})
    assert called == []


async def test_results_become_json_values():
    """Dates, sets and structures are given back as JSON."""

    async def made():
        return {"on": dt.date(2026, 1, 2), "tags": {"x"}, 3: None}

    assert await run(made) == {"on": "2026-01-02", "tags": ["x"], "3": None}


@pytest.mark.parametrize("value", [object(), "\ud800", {"a": object()}], ids=repr)
async def test_results_that_are_not_json_are_execution_errors(value):
    """What cannot be written as JSON is said to the model as a failure of the tool."""

    def made():
        return value

    with pytest.raises(ToolExecutionError, match="cannot be written as JSON"):
        await run(made)


async def test_exceptions_become_execution_errors_without_traceback():
    """The model reads type and message, and no frame of the program."""

    def breaks():
        raise LookupError("no order 7")

    with pytest.raises(ToolExecutionError) as caught:
        await run(breaks)
    assert str(caught.value) == "Tool execution error: LookupError: no order 7"
    assert isinstance(caught.value.__cause__, LookupError)


async def test_tool_errors_pass_unchanged():
    """A tool may raise the errors of the contract itself."""

    async def refuses():
        raise ToolInvalidArgumentsError("$.order: unknown")

    with pytest.raises(ToolInvalidArgumentsError, match=r"\$\.order: unknown"):
        await run(refuses)


async def test_unknown_tool():
    """A name that is not here is not found."""
    with pytest.raises(ToolNotFoundError, match="Tool not found: nope"):
        await FunctionToolExecutor([]).execute("nope", "c", {}, CTX)


async def test_async_timeout_cancels():
    """An async tool that is too slow is cancelled and reported as a timeout."""
    cancelled = asyncio.Event()

    @tool(timeout=0.01)
    async def slow():
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(ToolTimeoutError, match="whether it acted is not known"):
        await run(slow)
    assert cancelled.is_set()


async def test_a_tools_own_timeout_error_is_not_ours():
    """TimeoutError raised inside is the tool's failure, not the deadline's."""

    @tool(timeout=10)
    async def calls():
        raise TimeoutError("the bank did not answer")

    with pytest.raises(ToolExecutionError, match="TimeoutError: the bank did not answer"):
        await run(calls)


async def test_a_sync_tool_past_its_timeout_keeps_its_place_until_it_ends():
    """With max_concurrency=1 there are never two at once, even when nobody waits for the first."""
    release = threading.Event()
    running = []

    @tool(timeout=0.05, max_concurrency=1)
    def slow(n: int):
        running.append(n)
        release.wait(10)
        running.remove(n)
        return n

    executor = FunctionToolExecutor([slow])
    with pytest.raises(ToolTimeoutError):
        await executor.execute("slow", "a", {"n": 1}, CTX)
    with pytest.raises(ToolExecutionError, match="was not started"):
        await executor.execute("slow", "b", {"n": 2}, CTX)
    assert running == [1]
    release.set()
    assert await executor.execute("slow", "c", {"n": 3}, CTX) == 3


async def test_max_concurrency_bounds_parallel_calls():
    """At most so many run at once; the others wait their turn and all are answered."""
    running = most = 0
    gate = asyncio.Event()

    @tool(max_concurrency=2)
    async def work(n: int):
        nonlocal running, most
        running += 1
        most = max(most, running)
        if n == 1:
            gate.set()
        await gate.wait()
        await asyncio.sleep(0)
        running -= 1
        return n

    executor = FunctionToolExecutor([work])
    calls = [executor.execute("work", str(n), {"n": n}, CTX) for n in range(5)]
    assert await asyncio.wait_for(asyncio.gather(*calls), 10) == list(range(5))
    assert most == 2


async def test_the_thread_bound_holds():
    """No more threads than allowed run tools at once."""
    at_once = threading.Barrier(2)
    lock = threading.Lock()
    running = most = 0

    def work(n: int):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        at_once.wait(10)
        with lock:
            running -= 1
        return n

    executor = FunctionToolExecutor([work], max_threads=2)
    calls = [executor.execute("work", str(n), {"n": n}, CTX) for n in range(6)]
    assert await asyncio.wait_for(asyncio.gather(*calls), 20) == list(range(6))
    assert most == 2


async def test_cancelling_gives_the_place_back():
    """A cancelled call leaves the bound as it found it."""
    waiting = asyncio.Event()

    @tool(max_concurrency=1)
    async def once_blocked(block: bool):
        if block:
            waiting.set()
            await asyncio.Event().wait()
        return "done"

    executor = FunctionToolExecutor([once_blocked])
    task = asyncio.ensure_future(executor.execute("once_blocked", "a", {"block": True}, CTX))
    await asyncio.wait_for(waiting.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.wait_for(executor.execute("once_blocked", "b", {"block": False}, CTX), 10) == "done"


async def test_a_sync_function_that_gives_an_awaitable():
    """What a plain function returns is awaited when it can be."""

    async def inner():
        return 5

    def outer():
        return inner()

    assert await run(outer) == 5
