"""From a URL to a store: `memory:`, `sqlite:///relative.db`, `sqlite:////absolute/path.db`."""

from antiphon.domain.errors import ConfigurationError
from antiphon.store.memory import MemoryStore
from antiphon.store.protocol import Store
from antiphon.store.sqlite.store import SqliteStore

_FORMS = (
    "Use sqlite:///file.db (relative), sqlite:////path/to/file.db (absolute) or memory: (nothing is kept)."
)


def open_store(url: str) -> Store:
    """The store that this URL names, not opened yet: the caller awaits `open()` and, in the end, `close()`.

    `ConfigurationError` for a URL that names no store.
    """
    scheme, colon, rest = url.partition(":")
    match scheme.lower():
        case "memory" if colon and rest in {"", "//"}:
            return MemoryStore()
        case "sqlite" if rest.startswith("///"):
            return SqliteStore(_path(url, rest.removeprefix("///")))
        case "sqlite":
            raise ConfigurationError(f"{url!r} names no file", hint=_FORMS)
        case "postgres" | "postgresql":
            raise ConfigurationError("postgresql:// is not available in this version", hint=_FORMS)
        case _:
            raise ConfigurationError(f"{url!r} is not the URL of a store", hint=_FORMS)


def _path(url: str, path: str) -> str:
    if not path or path.endswith("/") or "?" in path:
        raise ConfigurationError(f"{url!r} names no file", hint=_FORMS)
    if path == ":memory:":
        raise ConfigurationError(f"{url!r}: a SQLite store needs a file", hint="Use memory: to keep nothing.")
    return path
