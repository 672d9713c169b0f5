"""One policy for trying a model server again.

Only failures before the first event are tried again here: what a reader may have seen is never asked
for twice behind its back. Waits grow exponentially with full jitter; a `Retry-After` that is longer
than the cap is not waited for, the error goes up with it and somebody else may answer sooner.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec

from antiphon.domain.errors import InferenceError


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often, and after which waits. `random` gives a number in [0, 1), `sleep` waits seconds."""

    attempts: int = 3
    base_s: float = 0.25
    max_wait_s: float = 8.0
    retry_after_cap_s: float = 30.0
    random: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def wait_before_next(self, failures: int, error: InferenceError) -> float | None:
        """Seconds to wait after the `failures`-th failure, None when it is not to be tried again."""
        if not error.retryable or error.torn or failures >= self.attempts:
            return None
        jittered: float = self.random() * min(self.max_wait_s, self.base_s * 2.0 ** (failures - 1))
        asked = error.retry_after_s
        if asked is None:
            return jittered
        return None if asked > self.retry_after_cap_s else max(asked, jittered)
