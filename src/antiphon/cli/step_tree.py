"""The steps of a response as a tree: what ran, under what, for how long, and with what result.

Steps come as the server lists them (`GET /v1/responses/{id}/steps`): flat, by sequence, an agent's steps
naming the call that they belong to.
"""

import json
from typing import Any

from rich.text import Text
from rich.tree import Tree

JSONObject = dict[str, Any]

_LONGEST = 60
_COLOURS = {
    "completed": "green",
    "failed": "red",
    "incomplete": "yellow",
    "canceled": "yellow",
    "cancelled": "yellow",
    "processing": "cyan",
    "in_progress": "cyan",
}


def step_tree(response: JSONObject, steps: list[JSONObject]) -> Tree:
    """The tree of a response."""
    tree = Tree(_heading(response))
    _add_scope(tree, None, steps)
    return tree


def coloured(status: str) -> Text:
    """A status in the colour that tells how it went."""
    return Text(status, style=_COLOURS.get(status, "dim"))


def _add_scope(branch: Tree, parent_step_id: str | None, steps: list[JSONObject]) -> None:
    for step in sorted(steps, key=lambda each: each["sequence"]):
        if step.get("parent_step_id") == parent_step_id:
            _add_scope(branch.add(_line(step)), step["id"], steps)


def _heading(response: JSONObject) -> Text:
    line = Text.assemble((response["id"], "bold"), "  ", coloured(response["status"]))
    line.append(f"  {response.get('model') or ''}", "dim")
    usage = response.get("usage")
    if usage:
        line.append(f"  {usage['input_tokens']} tokens in, {usage['output_tokens']} out", "dim")
    return line


def _line(step: JSONObject) -> Text:
    is_tool = step["kind"] == "tool_call"
    line = Text.assemble((step["short_id"], "dim"), "  ", ("tool   " if is_tool else "model  ", "dim"))
    line.append(step.get("name") or step["kind"], "bold")
    if is_tool:
        line.append(f"({_arguments(step.get('arguments'))})")
        line.append(f"  {step.get('effect') or ''}", "magenta")
    line.append("  ")
    line.append(coloured(step["state"]))
    if duration := _duration(step):
        line.append(f"  {duration}", "dim")
    if step.get("retry_attempt"):
        line.append(f"  attempt {step['retry_attempt'] + 1}", "yellow")
    if outcome := _outcome(step):
        line.append(f"\n  → {outcome}", "red" if step.get("error") else "dim")
    return line


def _arguments(arguments: Any) -> str:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return _shortened(arguments)
    if not isinstance(arguments, dict):
        return ""
    pairs = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
    return _shortened(", ".join(pairs))


def _duration(step: JSONObject) -> str:
    started, ended = step.get("started_at"), step.get("ended_at")
    if started is None or ended is None:
        return ""
    return f"{ended - started:.2f} s"


def _outcome(step: JSONObject) -> str:
    error = step.get("error")
    if isinstance(error, dict):
        error = error.get("message") or json.dumps(error, ensure_ascii=False)
    return _shortened(str(error or step.get("output_preview") or ""))


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
