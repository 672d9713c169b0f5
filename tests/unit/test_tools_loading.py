"""Tools out of files and modules, and the errors people meet there."""

import sys

import pytest

from antiphon.domain.errors import ConfigurationError
from antiphon.tools.loading import load_tools

GOOD = """\
from __future__ import annotations
import dataclasses
from antiphon.tools.function import tool
from sibling_of_tools import WORD

@dataclasses.dataclass
class Order:
    id: int

@tool
def refund(order: Order) -> str:
    return WORD

@tool(name="look_up", effect="pure")
async def find(text: str) -> str:
    return text

alias = find

def plain(a: int) -> int:
    return a
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with tools in it, importable while the test runs."""
    (tmp_path / "my_tools.py").write_text(GOOD)
    (tmp_path / "sibling_of_tools.py").write_text("WORD = 'done'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("source", ["my_tools.py", "./my_tools.py", "my_tools"])
def test_decorated_functions_in_order(place, source):
    """A file and a module give the same tools, each once, in the order of definition."""
    assert [made.schema.name for made in load_tools(source)] == ["refund", "look_up"]


def test_file_elsewhere(place, tmp_path_factory, monkeypatch):
    """A file in another directory is found, and its siblings with it."""
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert len(load_tools(str(place / "my_tools.py"))) == 2


@pytest.mark.parametrize("source", ["my_tools:find", "my_tools.py:find"])
def test_one_by_name(place, source):
    """A name after a colon gives that tool alone."""
    assert [made.schema.name for made in load_tools(source)] == ["look_up"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nowhere.py", "there is no file nowhere.py"),
        ("nowhere_at_all", "there is no module 'nowhere_at_all'"),
        ("my_tools:nope", "there is no 'nope' in it"),
        ("my_tools:plain", "'plain' is not a tool"),
        ("sibling_of_tools", "no tools found"),
    ],
)
def test_what_is_not_there(place, source, words):
    """Each way of being wrong has its own words."""
    with pytest.raises(ConfigurationError, match=words):
        load_tools(source)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\nimport nowhere_at_all\n", r"broken\.py:2: ModuleNotFoundError"),
        ("x = 1\n\nx.nope\n", r"broken\.py:3: AttributeError"),
        ("def f(:\n", r"broken\.py:1: SyntaxError"),
        ("raise SystemExit(3)\n", r"broken\.py:1: SystemExit: 3"),
        (
            "from antiphon.tools.function import tool\n\n@tool\ndef f(*a): ...\n",
            r"broken\.py:3: ConfigurationError: .*cannot be expressed",
        ),
    ],
    ids=["import", "attribute", "syntax", "exit", "tool"],
)
@pytest.mark.parametrize("source", ["broken.py", "broken"])
def test_errors_while_importing_name_the_line(place, source, text, words):
    """The line of the user's own file is named, whatever failed beneath it."""
    (place / "broken.py").write_text(text)
    with pytest.raises(ConfigurationError, match=words):
        load_tools(source)
