"""Connections: how they are opened, and what their errors mean.

SQLite's errors fall into two kinds. Some say that nothing can be written or read now (full, locked, gone);
they become `StoreUnavailableError`. All others are about the entry that was being written.
"""

import sqlite3
from pathlib import Path

from antiphon.domain.errors import ConfigurationError, StoreUnavailableError
from antiphon.store.sqlite.statements import SCHEMA, SCHEMA_VERSION

APPLICATION_ID = 0x416E7470
"""Marks the file as ours ("Antp")."""

_OLDEST_LIBRARY = (3, 37, 0)
_PREPARED = 256
_BUSY_TIMEOUT_MS = 5000
_WRITER_CACHE_KIB = 32_768
_READER_CACHE_KIB = 8_192
_CHECKPOINT_PAGES = 1000
_PAGE_BYTES = 8192
"""Several steps of a usual size fit into one page, so a group dirties fewer of them than with the default."""
_WAL_KEPT_BYTES = 64 * 1024 * 1024

_REASONS = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk does not take or give data (full, over a limit, or broken)",
    sqlite3.SQLITE_BUSY: "another program has locked the database for too long",
    sqlite3.SQLITE_LOCKED: "another program has locked the database for too long",
    sqlite3.SQLITE_READONLY: "the database is read-only",
    sqlite3.SQLITE_CANTOPEN: "the database cannot be opened",
    sqlite3.SQLITE_PROTOCOL: "the database's locks are contested",
    sqlite3.SQLITE_PERM: "access to the database is denied",
    sqlite3.SQLITE_NOMEM: "memory is exhausted",
    sqlite3.SQLITE_INTERRUPT: "the operation was interrupted",
    sqlite3.SQLITE_CORRUPT: "the database file is damaged",
    sqlite3.SQLITE_NOTADB: "the file is not a database any more",
}
_STILL_GOOD = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def connect(path: Path, *, writes: bool) -> sqlite3.Connection:
    """A connection for one thread; the schema is taken as given."""
    connection = sqlite3.connect(
        path,
        timeout=_BUSY_TIMEOUT_MS / 1000,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_PREPARED,
    )
    try:
        connection.execute(f"PRAGMA cache_size = -{_WRITER_CACHE_KIB if writes else _READER_CACHE_KIB}")
        connection.execute("PRAGMA temp_store = MEMORY")
        if writes:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT_BYTES}")
        else:
            connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(path: Path) -> sqlite3.Connection:
    """The writing connection, on a file with our schema; made when the file is new.

    Raises `ConfigurationError` when the file cannot serve, `StoreUnavailableError` when the disk is full.
    """
    if sqlite3.sqlite_version_info < _OLDEST_LIBRARY:
        wanted = ".".join(map(str, _OLDEST_LIBRARY))
        raise ConfigurationError(
            f"SQLite {wanted} or newer is needed; this Python has {sqlite3.sqlite_version}"
        )
    try:
        connection = connect(path, writes=True)
        try:
            _settle_schema(connection, path)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise _opening_error(error, path) from error
    return connection


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's error code without its details."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def unavailable(error: BaseException) -> StoreUnavailableError | None:
    """The error that says why nothing can be written or read now; None when it is about one entry."""
    if not isinstance(error, sqlite3.Error):
        return None
    reason = _REASONS.get(primary_code(error))
    if reason is None:
        return None
    return StoreUnavailableError(f"{reason} ({error}).", hint="Nothing was written; try again.")


def still_good(error: sqlite3.Error) -> bool:
    """True when the connection may be used again after this error."""
    return primary_code(error) in _STILL_GOOD


def _settle_schema(connection: sqlite3.Connection, path: Path) -> None:
    version, application = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("user_version", "application_id")
    )
    if application == APPLICATION_ID and version == SCHEMA_VERSION:
        connection.execute("PRAGMA journal_mode = WAL")
        return
    if application == APPLICATION_ID and version > SCHEMA_VERSION:
        raise ConfigurationError(
            f"{path} has schema {version}, written by a newer Antiphon; this one knows {SCHEMA_VERSION}",
            hint="Install the version that wrote it, or give another file.",
        )
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise ConfigurationError(
            f"{path} is a SQLite database of another program", hint="Give a path where no file is yet."
        )
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(
        f"BEGIN IMMEDIATE;\n{SCHEMA}\n"
        f"PRAGMA application_id = {APPLICATION_ID};\nPRAGMA user_version = {SCHEMA_VERSION};\nCOMMIT;"
    )


def _opening_error(error: sqlite3.Error, path: Path) -> ConfigurationError | StoreUnavailableError:
    match primary_code(error):
        case sqlite3.SQLITE_FULL:
            return StoreUnavailableError(f"the disk is full: {path} ({error})")
        case sqlite3.SQLITE_NOTADB:
            return ConfigurationError(
                f"{path} is not a SQLite database", hint="Give a path where no file is yet."
            )
        case sqlite3.SQLITE_CORRUPT:
            return ConfigurationError(f"{path} is damaged ({error})", hint="Restore it from a backup.")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return ConfigurationError(
                f"{path} is locked by another program", hint="Close that program first."
            )
        case _:
            return ConfigurationError(
                f"{path} cannot be opened as a database ({error})",
                hint="The file and its directory must be readable and writable by this user.",
            )
