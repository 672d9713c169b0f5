"""What every store must do, as checks that anybody can run against their own.

Each check is an async function of one opened, empty store; it returns when the store does what the
protocol (`antiphon.store.protocol`) says, and raises `AssertionError` saying what was seen instead. Its
docstring is the behaviour that it holds. With pytest and anyio:

    from antiphon.testing.store_conformance import CHECKS

    @pytest.mark.anyio
    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_my_store(check, tmp_path):
        store = MyStore(tmp_path)
        await store.open()
        try:
            await check(store)
        finally:
            await store.close()

`STEP_CHECKS` need a `ResponseStepStore` alone, `RESPONSE_CHECKS` a `ResponseStore`, and `CHECKS`, which
holds them all, a `Store`. Durability cannot be checked from inside a process; kill yours and look.
"""

from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

from antiphon.testing.store_conformance import (
    claims,
    commits,
    deletion,
    events,
    reads,
    refusals,
    responses,
    steps,
)

Check = Callable[[Any], Awaitable[None]]


def _checks_of(module: ModuleType) -> tuple[Check, ...]:
    """The public coroutine functions that a module defines, in their order."""
    return tuple(
        value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
        and callable(value)
    )


STEP_CHECKS = _checks_of(steps)
RESPONSE_CHECKS = _checks_of(responses)
STORE_CHECKS = tuple(
    check for module in (commits, refusals, events, claims, reads, deletion) for check in _checks_of(module)
)
CHECKS = STEP_CHECKS + RESPONSE_CHECKS + STORE_CHECKS

__all__ = ["CHECKS", "RESPONSE_CHECKS", "STEP_CHECKS", "STORE_CHECKS", "Check"]
