"""What a tool may know of the call it serves, beside its arguments.

The loop tells the attempt through `current_attempt`: the seam `ToolExecutor.execute` stays free of it,
and a tool that does not care never sees it.
"""

from contextvars import ContextVar

import msgspec

from antiphon.domain.tools import RequestContext

current_attempt: ContextVar[int] = ContextVar("antiphon_tool_attempt", default=0)
"""How often this call was begun before; set by the loop around `execute`, 0 outside of it."""


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """The call that a function serves; it is given as the first parameter when that is annotated so.

    `request` is what the embedding program wants its tools to see. `idempotency_key` is the same for
    every attempt at the call, so an outside system that knows such keys acts once. `attempt` counts
    from 0.
    """

    request: RequestContext
    idempotency_key: str
    attempt: int
    tool_name: str
