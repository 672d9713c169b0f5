"""The configuration's page says what the schema says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.cli.checks import check, routes
from antiphon.cli.flags import Flags
from antiphon.cli.loading import load
from antiphon.cli.schema import dotted, leaves

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "configuration.md"


def test_the_page_is_current():
    """docs/configuration.md is what the generator writes today."""
    done = subprocess.run(
        [sys.executable, "scripts/generate_reference.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_key_is_described():
    """No key is missing from the page, and none is without a description."""
    page = PAGE.read_text()
    for place in leaves():
        assert re.search(rf"^\| `{re.escape(dotted(place))}` \|.*\| \S.*\|$", page, re.MULTILINE), place


@pytest.mark.parametrize("example", re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL))
def test_the_examples_work(tmp_path, example):
    """Each file shown on the page loads and passes the checks."""
    file = tmp_path / "antiphon.yaml"
    file.write_text(example)
    configuration = load(Flags(config=file), {"BACKUP_KEY": "k", "HOSTED_KEY": "h", "TEAM_KEY": "t"})
    check(configuration)
    assert routes(configuration.settings)
