"""A long conversation: what a turn adds does not depend on how many came before it."""

import sqlite3
from itertools import pairwise

import pytest

from antiphon import Engine
from antiphon.domain.inference import InferenceFinished, TextDelta

pytestmark = pytest.mark.anyio

TURNS = 300


class SameAnswer:
    """An upstream that always says the same, and counts what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def call(self, request):
        self.asked.append(len(request.input))
        yield TextDelta("An answer of always the same length.")
        yield InferenceFinished()


def stored_bytes(path) -> int:
    """The bytes of all rows: pages come in steps, rows do not."""
    with sqlite3.connect(path) as connection:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        total = 0
        for table in tables:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            sizes = " + ".join(f"coalesce(length(CAST({column} AS BLOB)), 0)" for column in columns)
            total += connection.execute(f"SELECT coalesce(sum({sizes}), 0) FROM {table}").fetchone()[0]
    connection.close()
    return total


async def test_the_store_grows_linearly(tmp_path):
    """The last hundred turns of three hundred add what the first hundred did: history is not copied."""
    path = tmp_path / "work.db"
    upstream = SameAnswer()
    previous = None
    sizes = [0]
    async with Engine(store=f"sqlite:///{path}", upstream=upstream) as engine:
        for turn in range(1, TURNS + 1):
            made = await engine.responses.create(
                model="same", input=f"Question {turn:04}.", previous_response_id=previous
            )
            previous = made.id
            if turn % 100 == 0:
                sizes.append(stored_bytes(path))
    first, _, last = (after - before for before, after in pairwise(sizes))
    assert upstream.asked == [2 * turn - 1 for turn in range(1, TURNS + 1)]
    assert last == pytest.approx(first, rel=0.02)
