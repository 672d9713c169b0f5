"""Would the tests notice? `python scripts/mutants.py` breaks one promise at a time and expects red.

Each mutant replaces one passage in a copy of the tree and runs the quick tests that should fail. Prints a
table; exit code 1 when a mutant survives, when its passage is gone, or when the tests fail without any.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("src", "tests", "pyproject.toml", "README.md")
LONGEST_TEST_S = 45

POINTS = "tests/crash/test_crash_points.py"
COMMITS = "tests/crash/test_every_commit.py"
CLIENT = "tests/crash/test_official_client.py"
STOPPING = "tests/crash/test_stopping.py"
GIVING_UP = "tests/crash/test_giving_up.py"
CONFORMANCE = "tests/store/test_conformance.py"

QUERIES = "src/antiphon/store/sqlite/queries.sql"
ENGINE = "src/antiphon/engine/"


class Mutant(NamedTuple):
    """What is broken, in which file, which passage becomes which, and which tests should turn red."""

    promise: str
    path: str
    passage: str
    becomes: str
    tests: tuple[str, ...]


MUTANTS = (
    Mutant(
        "every commit is fenced",
        QUERIES,
        "WHERE run_id = ?5 AND fence = ?6 AND owner = ?7 AND",
        "WHERE run_id = ?5 AND ?6 IS NOT NULL AND ?7 IS NOT NULL AND",
        (CONFORMANCE,),
    ),
    Mutant(
        "taking over raises the fence",
        QUERIES,
        "UPDATE runs SET fence = fence + 1, takeovers",
        "UPDATE runs SET fence = fence, takeovers",
        (CONFORMANCE,),
    ),
    Mutant(
        "a commit's number is used once",
        QUERIES,
        "AND commit_no < ?1 AND state",
        "AND ?1 IS NOT NULL AND state",
        (CONFORMANCE,),
    ),
    Mutant(
        "events are written before they are told",
        ENGINE + "journal.py",
        "        self._in_flight = pending\n",
        "        self._in_flight = pending\n"
        "        for window in pending.windows:\n            self._channel.publish(window)\n",
        (COMMITS,),
    ),
    Mutant(
        "a response is written before its id is told",
        ENGINE + "journal.py",
        '            reach("admission.before_commit")\n',
        '            self._on_admitted()\n            reach("admission.before_commit")\n',
        (COMMITS, POINTS),
    ),
    Mutant(
        "a step's start is written before its call leaves",
        ENGINE + "journal.py",
        "            self._move(step, StepState.PROCESSING)\n        await self.written()\n",
        "            self._move(step, StepState.PROCESSING)\n",
        (COMMITS,),
    ),
    Mutant(
        "the end is written before the answer goes out",
        ENGINE + "journal_sink.py",
        "        await journal.written()\n        self._ended(ending, body)\n",
        "        self._ended(ending, body)\n        await journal.written()\n",
        (COMMITS,),
    ),
    Mutant(
        "a torn answer is struck from the log",
        ENGINE + "recovery.py",
        "                    journal.strike(step.id)\n",
        "                    pass\n",
        (POINTS,),
    ),
    Mutant(
        "what is struck leaves the log",
        QUERIES,
        "DELETE FROM events WHERE response_id = ? AND step_id = ?",
        "DELETE FROM events WHERE response_id = ? AND step_id = ? AND 0",
        (POINTS,),
    ),
    Mutant(
        "a `once` call in doubt is not run again",
        ENGINE + "recovery.py",
        '    if step.request.get("effect") != ToolEffect.ONCE:\n',
        '    if step.request.get("effect"):\n',
        (POINTS,),
    ),
    Mutant(
        "a repeated call has the same key",
        ENGINE + "loop.py",
        "key=step_id, attempt=attempt)",
        'key=f"{step_id}-{attempt}" if attempt else step_id, attempt=attempt)',
        (POINTS,),
    ),
    Mutant(
        "numbers go on after a takeover",
        ENGINE + "adoption.py",
        "next_sequence_number=stored.next_sequence_number,",
        "next_sequence_number=0,",
        (POINTS,),
    ),
    Mutant(
        "a cursor means: after this event",
        ENGINE + "following.py",
        "[after - window.first + 1 : -1]",
        "[after - window.first : -1]",
        (POINTS,),
    ),
    Mutant(
        "no answered model call is asked again",
        ENGINE + "chain.py",
        "        step.state = row.state\n",
        "        step.state = row.state if row.step_kind == 'tool_call' else StepState.PENDING\n",
        (POINTS,),
    ),
    Mutant(
        "a client's own retry finds its response",
        ENGINE + "engine.py",
        "elif arrival.retry_count > 0 and",
        "elif arrival.retry_count > 9 and",
        (CLIENT,),
    ),
    Mutant(
        "a plain response is held for its client",
        ENGINE + "engine.py",
        "                run.held_s = self.durability.grace_s\n",
        "                pass\n",
        (CLIENT,),
    ),
    Mutant(
        "a stop waits for `once` calls",
        ENGINE + "loop.py",
        "        if effect is ToolEffect.ONCE:\n            return contextlib.nullcontext()\n",
        "",
        (STOPPING,),
    ),
    Mutant(
        "a stop gives the claim up",
        ENGINE + "active.py",
        "    journal.release()\n",
        "",
        (STOPPING,),
    ),
    Mutant(
        "poison is given up",
        ENGINE + "engine.py",
        "elif stored.takeovers > self.durability.max_takeovers and",
        "elif stored.takeovers > self.durability.max_takeovers + 9 and",
        (GIVING_UP,),
    ),
)


class Verdict(NamedTuple):
    """How a mutant fared: red, SURVIVED, GONE (its passage is not there) or BROKEN (no tests ran)."""

    outcome: str
    took_s: float
    first_failure: str


def main() -> int:
    """Run them all, or those whose promise holds a word."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose promise contains this")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at the same time")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if arguments.only in mutant.promise]
    tests = tuple(sorted({test for mutant in chosen for test in mutant.tests}))
    with tempfile.TemporaryDirectory(prefix="antiphon-mutants-") as directory:
        still = Path(directory) / "original"  # the tree as it is now, whoever edits it meanwhile
        _copy(ROOT, still)
        verdict = _run(still, tests)
        if verdict.outcome != "SURVIVED":
            print(f"without any mutant the tests are {verdict.outcome}: {verdict.first_failure}")
            return 1
        with ThreadPoolExecutor(arguments.jobs) as pool:
            verdicts = list(pool.map(lambda mutant: _try(mutant, still, Path(directory)), chosen))
    _print_table(chosen, verdicts)
    return 0 if all(verdict.outcome == "red" for verdict in verdicts) else 1


def _try(mutant: Mutant, still: Path, directory: Path) -> Verdict:
    tree = directory / f"mutant-{MUTANTS.index(mutant)}"
    _copy(still, tree)
    source = tree / mutant.path
    text = source.read_text()
    if mutant.passage not in text:
        return Verdict("GONE", 0.0, mutant.path)
    source.write_text(text.replace(mutant.passage, mutant.becomes))
    verdict = _run(tree, mutant.tests)
    shutil.rmtree(tree)
    sys.stderr.write(f"{verdict.outcome:8} {mutant.promise}\n")
    return verdict


def _copy(source: Path, target: Path) -> None:
    target.mkdir()
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source / name, target / name)


def _run(tree: Path, tests: tuple[str, ...]) -> Verdict:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
    command += [f"--timeout={LONGEST_TEST_S}", f"--basetemp={tree / 'tmp'}", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    began = time.monotonic()
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    failures = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    first = failures[0].split(" ", 1)[1] if failures else done.stdout.strip().rpartition("\n")[2]
    outcome = {0: "SURVIVED", 1: "red"}.get(done.returncode, "BROKEN")
    return Verdict(outcome, time.monotonic() - began, first.partition(" - ")[0])


def _print_table(mutants: list[Mutant], verdicts: list[Verdict]) -> None:
    print("| promise that was broken | verdict | seconds | first test that fails |")
    print("|---|---|---:|---|")
    for mutant, verdict in zip(mutants, verdicts, strict=True):
        print(f"| {mutant.promise} | {verdict.outcome} | {verdict.took_s:.0f} | `{verdict.first_failure}` |")


if __name__ == "__main__":
    sys.exit(main())
