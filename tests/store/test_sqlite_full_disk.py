"""A disk that is full: nothing half written, a message that a person understands, and on it goes afterwards."""

import subprocess
import sys

import pytest

pytest.importorskip("resource", reason="file size limits are a thing of POSIX")

WRITER = """
import asyncio, os, resource, sys
from antiphon.domain.errors import StoreUnavailableError
from antiphon.store.sqlite.store import SqliteStore
from antiphon.testing.store_conformance.story import Story, everything_of, written

path = sys.argv[1]

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

async def main():
    store = SqliteStore(path)
    await store.open()
    first, second = Story(), Story()
    await written(store, first.admitted(new_steps=(first.step(0),)), second.admitted())
    before = [await everything_of(store, story) for story in (first, second)]
    limit(max(os.path.getsize(path), os.path.getsize(path + "-wal")) + 300_000)
    large = first.step(1, request_payload=b"x" * 3_000_000)
    group = [second.then(run_state="running"), first.then(new_steps=(large,))]
    for _ in range(5):
        try:
            await store.commit(group)
        except StoreUnavailableError as error:
            assert "full" in str(error) and path not in str(error), str(error)
        else:
            raise SystemExit("written beyond the limit")
        assert [await everything_of(store, story) for story in (first, second)] == before, "torn"
    small = Story()
    await written(store, small.admitted())
    limit(resource.RLIM_INFINITY)
    assert await store.commit(group) == [None, None], "the same group, when there is room again"
    await store.check()
    await store.close()
    again = SqliteStore(path)
    await again.open()
    assert [row.ordinal for row in await again.list_steps(first.run_id)] == [0, 1]
    assert (await again.get_run(second.run_id)).state == "running"
    assert await again.get_run(small.run_id) is not None
    await again.close()
    print("recovered")

asyncio.run(main())
"""


def test_a_full_disk_loses_nothing_and_passes(tmp_path):
    """A group that does not fit raises `StoreUnavailableError`, leaves no trace, and fits when there is room."""
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path / "store.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "recovered\n"
