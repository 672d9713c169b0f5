"""Speaks the protocol: routes, event streams, keys, errors. May import `engine` and what is below it.

`create_app(engine)` is an ASGI application to run or to mount. Begin with `app`.
"""

from antiphon.server.app import create_app
from antiphon.server.options import ServerOptions

__all__ = ["ServerOptions", "create_app"]
