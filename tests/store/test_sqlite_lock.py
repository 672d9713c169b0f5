"""One process at a time uses a file; the others hear whose it is."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.domain.errors import ConfigurationError
from antiphon.store.sqlite.store import SqliteStore

HOLDER = """
import asyncio, sys
from antiphon.store.sqlite.store import SqliteStore

async def main():
    await SqliteStore(sys.argv[1]).open()
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@pytest.mark.anyio
async def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path):
    """The error names the holder's process id; SIGKILL leaves no lock behind."""
    path = tmp_path / "store.db"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert await asyncio.to_thread(holder.stdout.readline) == "open\n"
        store = SqliteStore(path)
        with pytest.raises(ConfigurationError, match=f"in use by process {holder.pid} ") as refused:
            await store.open()
        assert "stop that one" in refused.value.hint
        holder.send_signal(signal.SIGKILL)
        await asyncio.to_thread(holder.wait, 30)
    await store.open()
    await store.check()
    await store.close()


@pytest.mark.anyio
async def test_a_second_store_in_one_process_is_refused(tmp_path):
    """Two stores on one file in one process are one too many, also by another name of the file."""
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    (tmp_path / "link.db").symlink_to(tmp_path / "store.db")
    try:
        for name in ("store.db", "link.db"):
            with pytest.raises(ConfigurationError, match="in use by this very process"):
                await SqliteStore(tmp_path / name).open()
    finally:
        await store.close()
    other = SqliteStore(tmp_path / "link.db")
    await other.open()
    await other.close()


@pytest.mark.anyio
async def test_a_directory_that_cannot_be_written_is_named():
    """Where no lock file can be made, not even by root, the error says where."""
    with pytest.raises(ConfigurationError, match=r"lock file.*/proc/store\.db"):
        await SqliteStore(Path("/proc/store.db")).open()


LOCKS_WITHOUT_ROOM = """
import resource, sys
from pathlib import Path
from antiphon.domain.errors import ConfigurationError
from antiphon.store.sqlite.lock import FileLock

resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
lock = FileLock(Path(sys.argv[1]))
lock.acquire()
try:
    FileLock(Path(sys.argv[1])).acquire()
except ConfigurationError as refused:
    print(refused)
lock.release()
"""


def test_a_full_disk_does_not_stop_the_lock(tmp_path):
    """Where the holder's process id cannot be written the lock holds all the same."""
    pytest.importorskip("resource", reason="file size limits are a thing of POSIX")
    done = subprocess.run(
        [sys.executable, "-c", LOCKS_WITHOUT_ROOM, str(tmp_path / "store.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "is in use by process unknown" in done.stdout
