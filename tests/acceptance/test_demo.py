"""`antiphon demo`, as somebody runs it who has just installed the package."""

import os
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.crash, pytest.mark.timeout(90)]


def demo(directory, **environ: str) -> tuple[int, str, float]:
    """Exit code, output and seconds of one demo, run where there is nothing but Python."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("ANTIPHON_", "OPENAI_"))
    }
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "antiphon", "demo"],
        cwd=directory,
        env={**inherited, **environ},
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, time.monotonic() - began


def test_the_demo_proves_what_it_promises(tmp_path):
    """A server is killed in mid-answer and the demo proves, within 30 s, that nothing was lost or doubled."""
    exit_code, shown, took_s = demo(tmp_path)
    assert exit_code == 0, shown
    assert took_s < 30
    before, _, after = shown.partition("kill -9")
    assert "[rehearsal]" in before.rpartition("> ")[2], "words of the killed answer were seen"
    assert "starting_after=" in after
    assert "Nothing was lost and nothing was done twice" in after
    assert "  NO  " not in shown
    assert 'book_ticket(destination="Porto")' in after.partition("$ antiphon responses show")[2]


def test_the_demo_fails_when_the_server_does_not_recover(tmp_path):
    """With recovery switched off nothing goes on after the kill, and the demo says so instead of hanging."""
    exit_code, shown, took_s = demo(tmp_path, ANTIPHON_DURABILITY__RECOVERY="false")
    assert exit_code == 1, shown
    assert took_s < 40
    assert "FAILED: nothing came for" in shown
    assert "the response does not go on" in shown


def test_other_servers_settings_do_not_reach_the_demo(tmp_path):
    """A configuration file and variables of the user's own server are not the demo's."""
    (tmp_path / "antiphon.yaml").write_text("this is: [not valid\n")
    exit_code, shown, _ = demo(
        tmp_path, ANTIPHON_STORE="nonsense:", ANTIPHON_API_KEY="k", OPENAI_BASE_URL="http://x"
    )
    assert exit_code == 0, shown
