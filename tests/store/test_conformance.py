"""The conformance suite, on every store that we have."""

import pytest

from antiphon.store.memory import MemoryStore
from antiphon.store.sqlite.store import SqliteStore
from antiphon.testing.store_conformance import CHECKS


@pytest.fixture(params=["memory", "sqlite"])
async def store(request, tmp_path, anyio_backend):
    """An opened, empty store of each kind."""
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "store.db")
    await store.open()
    yield store
    await store.close()


@pytest.mark.anyio
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_store_conforms(check, store):
    """The store does what this check says (its docstring tells the behaviour)."""
    await check(store)


def test_every_check_says_what_it_holds():
    """A check is a sentence: each has a docstring of its own."""
    docstrings = [check.__doc__ for check in CHECKS]
    assert all(docstrings)
    assert len(set(docstrings)) == len(docstrings) >= 50
