"""The tree that `antiphon responses show` draws."""

from rich.console import Console

from antiphon.cli.step_tree import step_tree


def step(number: int, kind: str = "tool_call", parent: str | None = None, **more: object) -> dict:
    """A step as the server lists it."""
    plain = {
        "id": f"step_{number}",
        "short_id": f"{number:08}",
        "kind": kind,
        "state": "completed",
        "sequence": number,
        "parent_step_id": parent,
        "retry_attempt": 0,
        "name": "refund",
        "effect": "once" if kind == "tool_call" else None,
        "arguments": '{"order": "7"}' if kind == "tool_call" else None,
        "output_preview": None,
        "started_at": 1.0,
        "ended_at": 1.5,
        "error": None,
    }
    return {**plain, **more}


def drawn(*steps: dict) -> list[str]:
    """The lines of the tree."""
    console = Console(width=200)
    response = {"id": "resp_1", "status": "in_progress", "model": "m", "usage": None}
    with console.capture() as capture:
        console.print(step_tree(response, list(steps)))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_steps_stand_in_order_with_what_they_did():
    """By sequence, whatever order they came in: kind, name, arguments, effect, state, time, result."""
    lines = drawn(step(2, output_preview="done"), step(1, "model_call", name="qwen3"))
    assert lines == [
        "resp_1  in_progress  m",
        "├── 00000001  model  qwen3  completed  0.50 s",
        '└── 00000002  tool   refund(order="7")  once  completed  0.50 s',
        "      → done",
    ]


def test_an_agents_steps_stand_below_its_call():
    """A scope within a scope."""
    lines = drawn(step(1, name="agent"), step(2, "model_call", "step_1", name="inner"), step(3, name="after"))
    assert lines[2].startswith("│   └── 00000002  model  inner")
    assert lines[3].startswith("└── 00000003  tool   after")


def test_failures_and_unfinished_work_are_seen():
    """An error instead of a result, a further attempt, no time where nothing has ended."""
    lines = drawn(
        step(1, state="failed", error={"message": "no such order"}),
        step(2, state="processing", ended_at=None, retry_attempt=1),
    )
    assert lines[2] == "│     → no such order"
    assert lines[3] == '└── 00000002  tool   refund(order="7")  once  processing  attempt 2'


def test_what_models_write_is_shown_as_it_is():
    """Arguments that are no JSON, and text that looks like markup, break nothing."""
    lines = drawn(step(1, arguments="{broken [red]", output_preview="[bold]x[/bold] " + "long " * 50))
    assert "refund({broken [red])" in lines[1]
    assert lines[2].startswith("      → [bold]x[/bold] long")
    assert lines[2].endswith("…")
