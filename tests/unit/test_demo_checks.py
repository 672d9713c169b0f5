"""The demo's evidence can fail: each check complains when what it proves is not so."""

from copy import deepcopy
from pathlib import Path

import pytest

from antiphon.demo.checks import check_effects, check_follow_up, check_kept, check_log, check_reader
from antiphon.testing.effect_ledger import EffectLedger

CALL = {"type": "mcp_call", "id": "mcp_1", "name": "book", "output": "ok", "error": None}
DONE = {"type": "response.output_item.done", "sequence_number": 2, "output_index": 0, "item": CALL}
RESPONSE = {"id": "resp_1", "status": "completed", "output": [CALL]}
CREATED = {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1"}}
ENDED = {"type": "response.completed", "sequence_number": 3, "response": RESPONSE}
ASKED = [("book", {"to": "Porto"})]


def complaints(proofs) -> list[str]:
    """What was complained of, by the sentence that was to be proven."""
    return [what for what, complaint in proofs if complaint is not None]


@pytest.fixture
def ledger(tmp_path: Path) -> EffectLedger:
    made = EffectLedger(tmp_path / "ledger.jsonl")
    made.record(tool="book", key="k1", arguments={"to": "Porto"})
    return made


def test_honest_work_is_proven(ledger):
    """One call asked for, one in the ledger, one result in the log."""
    assert complaints(check_effects(ledger, ASKED, [[CREATED, DONE, ENDED]])) == []


def test_a_doubled_call_is_found(ledger):
    """Under the same key, and under another with the same arguments."""
    for key in ("k1", "k2"):
        ledger.record(tool="book", key=key, arguments={"to": "Porto"})
        assert any(
            "nothing was done twice" in each for each in complaints(check_effects(ledger, ASKED, [[DONE]]))
        )


def test_a_call_that_never_happened_is_found(tmp_path):
    """Even when ledger and log agree that nothing was done."""
    empty = EffectLedger(tmp_path / "none.jsonl")
    assert complaints(check_effects(empty, ASKED, [[CREATED, ENDED]])) != []


def test_a_lost_or_failed_result_is_found(ledger):
    """A call in the ledger without its result in the log."""
    failed = deepcopy(DONE)
    failed["item"]["error"] = {"type": "mcp_tool_execution_error"}
    for log in ([CREATED, ENDED], [CREATED, failed, ENDED]):
        assert any("nothing was lost" in each for each in complaints(check_effects(ledger, ASKED, [log])))


def test_a_log_that_tells_another_end_is_found():
    """The last event's response and GET's must be the same, and completed."""
    other = {**RESPONSE, "status": "failed"}
    found = complaints(check_log([CREATED, ENDED], other))
    assert any("GET answers" in each for each in found)
    assert any("is completed" in each for each in found)


def test_an_invalid_stream_is_found():
    """By the validator, for the reader and for the replay."""
    assert any("valid stream" in each for each in complaints(check_log([ENDED, CREATED], RESPONSE)))
    assert any("valid stream" in each for each in complaints(check_reader([CREATED], [CREATED])))


def test_numbers_that_fall_and_other_responses_are_found():
    """A reader that comes back must go on, with the same response."""
    other = {**ENDED, "sequence_number": 0, "response": {**RESPONSE, "id": "resp_2"}}
    found = complaints(check_reader([CREATED], [other]))
    assert any("numbers rose" in each for each in found)
    assert any("the same response" in each for each in found)


def test_what_was_told_and_then_changed_or_lost_is_found():
    """A number used twice, and an ended item that is gone."""
    changed = {**DONE, "output_index": 1}
    assert any("two events" in each for each in complaints(check_kept([DONE], [changed])))
    assert any("are kept" in each for each in complaints(check_kept([DONE], [CREATED])))
    assert complaints(check_kept([CREATED, DONE], [CREATED, DONE, ENDED])) == []


def test_a_forgotten_history_is_found():
    """The second turn must be the second for the model too."""
    said = {"type": "message", "content": [{"type": "output_text", "text": "This is turn 1 of our talk."}]}
    assert complaints(check_follow_up({"output": [said]})) != []
