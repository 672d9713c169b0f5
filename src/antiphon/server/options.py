"""What an operator decides about the HTTP side."""

import msgspec


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """API keys (none: everybody may), the largest body in bytes, the pause between keepalives in seconds."""

    api_keys: tuple[str, ...] = ()
    max_body_bytes: int = 64 * 1024 * 1024
    keepalive_s: float = 15.0
