"""Which URL names which store."""

from pathlib import Path

import pytest

from antiphon.domain.errors import ConfigurationError
from antiphon.store.memory import MemoryStore
from antiphon.store.opening import open_store
from antiphon.store.sqlite.store import SqliteStore


@pytest.mark.parametrize("url", ["memory:", "memory://", "MEMORY:"])
def test_memory_is_a_store(url):
    """`memory:` keeps everything until the process ends."""
    assert isinstance(open_store(url), MemoryStore)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///store.db", Path("store.db")),
        ("sqlite:///data/store.db", Path("data/store.db")),
        ("sqlite:////var/lib/store.db", Path("/var/lib/store.db")),
        ("SQLite:///store.db", Path("store.db")),
    ],
)
def test_a_path_is_relative_after_three_slashes_and_absolute_after_four(url, path):
    """Three slashes begin a relative path, four an absolute one."""
    store = open_store(url)
    assert isinstance(store, SqliteStore)
    assert store.path == path.resolve()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "not the URL of a store"),
        ("store.db", "not the URL of a store"),
        ("memory", "not the URL of a store"),
        ("redis://localhost", "not the URL of a store"),
        ("sqlite:store.db", "names no file"),
        ("sqlite://store.db", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///directory/", "names no file"),
        ("sqlite:///store.db?mode=ro", "names no file"),
        ("sqlite:///:memory:", "needs a file"),
        ("postgresql://localhost/antiphon", "not available in this version"),
        ("postgres://localhost/antiphon", "not available in this version"),
    ],
)
def test_other_urls_are_refused_with_a_hint(url, says):
    """A URL that names no store of ours is refused, and the hint says which forms there are."""
    with pytest.raises(ConfigurationError, match=says) as refused:
        open_store(url)
    assert "memory:" in refused.value.hint
