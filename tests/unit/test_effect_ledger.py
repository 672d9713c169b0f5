"""The ledger keeps every call of every process."""

import os
import subprocess
import sys

from antiphon.testing import EffectLedger


def test_calls_and_keys(tmp_path):
    """Begun calls are listed in order and under their keys; ends are kept apart."""
    ledger = EffectLedger(tmp_path / "ledger.jsonl")
    assert ledger.calls() == []
    ledger.record(tool="pay", key="k1", arguments={"n": 1})
    ledger.record(tool="pay", key="k1", phase="end")
    ledger.record(tool="pay", key="k2", arguments={"n": 2})
    assert [(call.tool, call.key, call.arguments) for call in ledger.calls()] == [
        ("pay", "k1", {"n": 1}),
        ("pay", "k2", {"n": 2}),
    ]
    assert ledger.calls()[0].pid == os.getpid()
    assert ledger.doubled_keys() == []
    assert ledger.doubled_effects() == []
    assert ledger.unfinished_keys() == ["k2"]


def test_doubled_calls_are_found_by_key_and_by_arguments(tmp_path):
    """A repetition is found under the same key, and under another key by its arguments."""
    ledger = EffectLedger(tmp_path / "ledger.jsonl")
    ledger.record(tool="pay", key="k1", arguments={"a": 1, "b": 2})
    ledger.record(tool="pay", key="k1", arguments={"a": 3})
    ledger.record(tool="pay", key="k2", arguments={"b": 2, "a": 1})
    assert ledger.doubled_keys() == ["k1"]
    assert ledger.doubled_effects() == [("pay", {"a": 1, "b": 2})]


def test_a_torn_last_line_is_skipped(tmp_path):
    """A process killed in mid-write does not make the ledger unreadable."""
    ledger = EffectLedger(tmp_path / "ledger.jsonl")
    ledger.record(tool="pay", key="k1")
    with ledger.path.open("ab") as file:
        file.write(b'{"tool":"pay","ke')
    assert [call.key for call in ledger.calls()] == ["k1"]


def test_many_processes_write_whole_lines(tmp_path):
    """Lines of processes that write at the same time never mix, however long they are."""
    path = tmp_path / "ledger.jsonl"
    program = (
        "import sys; from antiphon.testing.effect_ledger import EffectLedger\n"
        "for i in range(40): EffectLedger(sys.argv[1]).record(tool='t', key=f'{sys.argv[2]}-{i}', arguments='x' * 9000)"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program, path, str(n)]) for n in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    keys = [call.key for call in EffectLedger(path).calls()]
    assert sorted(keys) == sorted(f"{n}-{i}" for n in range(4) for i in range(40))
