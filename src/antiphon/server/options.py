"""What an operator decides about the HTTP side."""

from typing import Literal

import msgspec


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """API keys (none: everybody may), the largest body in bytes, the pause between keepalives in seconds.

    `unknown_tools`: what becomes of tools in a request that cannot be offered here, such as hosted ones.
    """

    api_keys: tuple[str, ...] = ()
    max_body_bytes: int = 64 * 1024 * 1024
    keepalive_s: float = 15.0
    unknown_tools: Literal["ignore", "reject"] = "ignore"
