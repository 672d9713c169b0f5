"""Synchronous tools, off the event loop.

Each call runs in a thread of its own, as many at once as the bound allows. A thread cannot be ended
from outside: when nobody waits for it any more it runs on, and keeps its place within the bound until
it returns. The threads are daemons, so a tool that hangs never keeps a process from ending.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any


async def run_in_thread(function: Callable[[], Any], *, ended: Callable[[], None]) -> Any:
    """Call `function` in a thread, with the caller's context variables, and give back what it gives.

    `ended` is called on the event loop once the thread has truly finished, which may be after the
    waiting task was cancelled.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        ended()
        if not outcome.done():
            outcome.set_result((result, error))

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as raised:  # noqa: BLE001 - handed over to the waiting task, whatever it is
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            return  # the loop is closed: nobody is left to be told

    try:
        threading.Thread(target=work, name="antiphon-tool", daemon=True).start()
    except RuntimeError:
        ended()
        raise
    result, error = await outcome
    if error is not None:
        raise error
    return result
