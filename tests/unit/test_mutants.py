"""The mutants of `scripts/mutants.py` can be made: one that cannot would prove nothing, unseen."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def mutants():
    """The table, from the script as it stands."""
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts" / "mutants.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MUTANTS


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.promise)
def test_its_passage_is_in_the_code(mutant):
    """A repair that changes the passage must change the mutant too."""
    assert mutant.passage in (ROOT / mutant.path).read_text(encoding="utf-8")
