"""What the documents say is so: links lead somewhere, commands parse, keys, tests and names exist."""

import ast
import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from antiphon.cli.app import app
from antiphon.cli.checks import check
from antiphon.cli.flags import Flags
from antiphon.cli.loading import load
from antiphon.cli.schema import dotted, leaves
from antiphon.observe import metrics

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
GENERATED = {DOCS / "configuration.md", DOCS / "python-api.md"}

_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_TEST_ID = re.compile(r"(tests/[\w/]+\.py)(?:::(\w+))?")


def _name(page):
    return str(page.relative_to(ROOT))


def _text(page):
    return page.read_text(encoding="utf-8")


def _prose(page):
    return _FENCE.sub("", _text(page))


def _blocks(page, *languages):
    return [found["body"] for found in _FENCE.finditer(_text(page)) if found["language"] in languages]


def _anchors(page):
    """The anchors of a page's headings, as code hosts make them."""
    titles = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


# --- links ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_relative_links_lead_somewhere(page):
    """Each link to a file of this repository finds it, and the heading that it names."""
    for link in _LINK.findall(_prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


def test_every_page_is_reached_from_the_index():
    """No document lies where nobody finds it."""
    reached, pending = set(), [DOCS / "index.md", ROOT / "README.md"]
    while pending:
        page = pending.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        links = [link.partition("#")[0] for link in _LINK.findall(_prose(page)) if "://" not in link]
        pending += [(page.parent / link).resolve() for link in links if link]
    assert {_name(page) for page in PAGES} == {_name(page) for page in reached}


# --- the command line ----------------------------------------------------------------------------------


def _commands(page):
    """Every `antiphon …` of a page, as the words behind the program's name."""
    lines = [line for body in _blocks(page, "sh", "console") for line in body.splitlines()]
    for line in [*lines, *_INLINE.findall(_prose(page))]:
        found = re.match(r"(?:.*&& )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/|\$ )?antiphon(?: (?P<words>.*))?$", line)
        if found is None or found["words"] is None:
            continue
        words = shlex.split(found["words"], comments=True)
        stops = [at for at, word in enumerate(words) if word in {"|", ">", "&"}]
        yield line, [word for word in words[: min(stops, default=len(words))] if word != "…"]


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_exist(page):
    """Each command line that a page shows is one that the program understands, flags and all."""
    for line, words in _commands(page):
        if words == ["--version"] or words in (["responses"], ["config"]):
            continue
        given = words + _left_out(words)
        command, bound, *_ = app.parse_args(given, exit_on_error=False, print_error=False)
        assert command.__module__.startswith("antiphon.cli."), line
        assert bound is not None, line


def _left_out(words):
    """An argument where a text names a command only: `antiphon responses show`."""
    return ["resp_1"] if words[:1] == ["responses"] and len(words) == 2 and words[1] != "ls" else []


def test_the_pages_do_show_commands():
    """The check above sees the commands: it must not pass because it found none."""
    seen = {words[0] for page in PAGES for _, words in _commands(page) if words}
    assert seen == {"config", "demo", "dev", "doctor", "responses", "serve"}


# --- configuration -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", sorted({*PAGES} - GENERATED), ids=_name)
def test_configuration_keys_exist(page):
    """Each key that a page names, dotted or as a variable, is in the schema."""
    known = {dotted(place) for place in leaves()}
    sections = {key.partition(".")[0] for key in known if "." in key}
    for code in _INLINE.findall(_prose(page)):
        if re.fullmatch(r"[a-z]+(\.[A-Za-z_]+)+", code) and code.partition(".")[0] in sections:
            assert code in known, code
    for section, key in re.findall(r"ANTIPHON_([A-Z]+)__([A-Z_]+)=", _text(page)):
        assert f"{section}.{key}".lower() in known, key


@pytest.mark.parametrize("page", sorted({*PAGES} - GENERATED), ids=_name)
def test_configuration_files_load(page, tmp_path):
    """Each configuration file that a page shows loads, and its values agree."""
    for body in _blocks(page, "yaml"):
        (tmp_path / "antiphon.yaml").write_text(body)
        names = re.findall(r"\$\{env\.(\w+)", body)
        check(load(Flags(config=tmp_path / "antiphon.yaml"), dict.fromkeys(names, "key")))


@pytest.mark.parametrize("check_of", ["configuration.md", "python-api.md"])
def test_the_generated_pages_are_current(check_of):
    """docs/configuration.md and docs/python-api.md are what the generator writes today."""
    done = subprocess.run(
        [sys.executable, "scripts/generate_reference.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert check_of not in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr


# --- programs, metrics, log lines ----------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_programs_import_what_exists(page):
    """Each Python block parses, and what it imports from `antiphon` is there."""
    if page in GENERATED:
        return
    for body in _blocks(page, "python"):
        for node in ast.walk(ast.parse(body)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "antiphon":
                module = importlib.import_module(node.module)
                public = getattr(module, "__all__", dir(module))
                for name in node.names:
                    assert name.name in public, name.name


@pytest.mark.parametrize("page", sorted((DOCS / "how-to").glob("*.md")), ids=_name)
def test_programs_of_the_how_tos_can_be_imported(page):
    """Tools, engines and applications are made as the page makes them; no exception comes."""
    for body in _blocks(page, "python"):
        exec(compile(body, str(page), "exec"), {"__name__": "shown"})  # noqa: S102 - our own pages


def test_metrics_and_log_lines_exist():
    """What the operator is told to look for is really written, and every metric is on the page."""
    page = _text(DOCS / "how-to" / "operate.md")
    written = {line.split()[2] for line in metrics.exposition().decode().splitlines() if "# TYPE" in line}
    written = {name for name in written if not name.endswith("_created")}
    named = set(re.findall(r"`(antiphon_\w+)`", page))
    assert named == written
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    logged = set(re.findall(r"\blog\.\w+\(\s*\"(\w+)\"", source))
    table = page.partition("## Log lines")[2].partition("\n## ")[0]
    events = {
        name for row in re.findall(r"^\| (`\w+`.*?) \|", table, re.MULTILINE) for name in _INLINE.findall(row)
    }
    assert events - {"event"} == logged


# --- guarantees, decisions, recipes --------------------------------------------------------------------


def _promises():
    """Title and text of each promise."""
    page = _text(DOCS / "guarantees.md")
    return re.findall(r"^## (\d+\. .+?)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("title", "text"), _promises(), ids=[title for title, _ in _promises()])
def test_each_promise_names_tests_that_exist(title, text):
    """A promise says what it assumes and what it leaves out, and names at least one test that is there."""
    for row in ("Promised", "Assumes", "Not promised", "Proved by"):
        assert re.search(rf"^\| \*\*{row}\*\* \| \S.* \|$", text, re.MULTILINE), f"{title}: no row {row}"
    proof = re.search(r"^\| \*\*Proved by\*\* \| (.*) \|$", text, re.MULTILINE)[1]
    assert _TEST_ID.findall(proof), title


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_named_tests_exist(page):
    """Each test that a page names is defined in the file that it names."""
    for path, function in _TEST_ID.findall(_text(page)):
        file = ROOT / path
        assert file.is_file(), path
        if function:
            defined = {
                node.name
                for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            assert function in defined, f"{path}::{function}"


def test_there_are_promises():
    """The page can be read at all: an empty one would pass every check above."""
    assert len(_promises()) >= 13


def test_every_dependency_has_its_line():
    """docs/adr/0002 has a row for each runtime dependency, and for nothing else."""
    project = tomllib.loads(_text(ROOT / "pyproject.toml"))["project"]
    wanted = {re.match(r"[\w-]+", each)[0] for each in project["dependencies"]}
    table = _text(DOCS / "adr" / "0002-dependencies.md")
    rows = set(re.findall(r"^\| ([a-z][\w-]+) \|", table, re.MULTILINE))
    assert rows == wanted


def test_recipes_exist():
    """Each `just` recipe that a page names is in the justfile."""
    recipes = set(re.findall(r"^([a-z]+).*:$", _text(ROOT / "justfile"), re.MULTILINE))
    for page in PAGES:
        lines = [*_INLINE.findall(_prose(page)), *"\n".join(_blocks(page, "console", "sh")).splitlines()]
        for line in lines:
            if found := re.match(r"just (\w+)", line):
                assert found[1] in recipes, line
