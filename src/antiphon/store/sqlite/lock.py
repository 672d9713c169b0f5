"""The lock beside the file: one process at a time writes a database, and says who it is.

`<file>-lock` is held with an OS lock, which dies with its process: nothing is left to clean up after
a SIGKILL. The file stays, and holds the process id of whoever has the lock.
"""

import contextlib
import os
import sys
from pathlib import Path

from antiphon.domain.errors import ConfigurationError

if sys.platform == "win32":  # pragma: no cover - exercised on that platform only
    import msvcrt

    # A locked byte cannot be read by others there, so it lies behind the process id.
    _LOCKED_BYTE = 1 << 20

    def _try_lock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)

else:
    import fcntl

    def _try_lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


class FileLock:
    """An exclusive lock for the database at `path`; held from `acquire` to `release`."""

    def __init__(self, path: Path) -> None:
        self._database = path
        self._path = path.with_name(path.name + "-lock")
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock; `ConfigurationError` naming the holder when somebody has it."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        except OSError as error:
            raise ConfigurationError(
                f"cannot create the lock file {self._path}: {error.strerror}",
                hint="Choose a directory that this user may write to.",
            ) from error
        try:
            _try_lock(descriptor)
        except OSError as error:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise self._refusal(error, holder) from error
        self._descriptor = descriptor
        with contextlib.suppress(OSError):  # a full disk: the lock holds, only its holder's name is missing
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())

    def release(self) -> None:
        """Give the lock up, if it is held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)

    def _refusal(self, error: OSError, holder: str) -> ConfigurationError:
        if not isinstance(error, BlockingIOError | PermissionError):
            return ConfigurationError(
                f"cannot lock {self._path}: {error.strerror}",
                hint="The file system must know file locks; choose a local directory.",
            )
        who = "this very process" if holder == str(os.getpid()) else f"process {holder or 'unknown'}"
        return ConfigurationError(
            f"the database {self._database} is in use by {who} (it holds {self._path})",
            hint="One process at a time may use a SQLite file: stop that one, or give this one another file.",
        )
