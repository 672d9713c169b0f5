# Daily work. `just` lists the recipes.

default:
    @just --list

# install everything into .venv
install:
    python3 -m venv .venv
    .venv/bin/pip install --quiet --constraint requirements.lock -e '.[test,lint]'

# what CI runs, in a fresh environment
ci:
    bash .ci/run

# format, lint, types, import rules
check:
    .venv/bin/ruff format .
    .venv/bin/ruff check .
    .venv/bin/mypy
    .venv/bin/lint-imports

# all tests, or some: just test tests/unit -k journal
test *ARGS:
    .venv/bin/python -m pytest {{ARGS}}

# the kill loop: random SIGKILLs until N have hit a step at work
torture KILLS="100":
    .venv/bin/python scripts/torture.py --kills {{KILLS}}

# each mutant must turn the quick tests red
mutants:
    .venv/bin/python scripts/mutants.py

# 200 streams at once for 20 seconds
streams:
    .venv/bin/python benchmarks/streams.py

# write the generated parts of docs/ anew
reference:
    .venv/bin/python scripts/generate_reference.py

# write requirements.lock anew
lock:
    uv pip compile --quiet --universal --no-header --no-annotate --no-emit-index-url --extra test --extra lint --output-file requirements.lock pyproject.toml
