"""What the demo shows: acts, the words of the model as they come, and what is proven in the end."""

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

JSONObject = dict[str, Any]

_INDENT = "    "


class Screen:
    """Writes to stdout, with colours where that is a terminal."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, soft_wrap=True)
        self._in_words = False

    def title(self, text: str) -> None:
        """The first line of all."""
        self._console.print(text, style="bold")

    def act(self, number: int, text: str) -> None:
        """A part of the story begins."""
        self._line(Text.assemble("\n", (f"{number}  {text}", "bold cyan")))

    def say(self, text: str, style: str = "") -> None:
        """One line of the story."""
        self._line(Text(f"{_INDENT}{text}", style))

    def show_event(self, event: JSONObject) -> None:
        """What an event tells a person: words, tools, and an answer that begins again."""
        match event:
            case {"type": "response.output_text.delta", "delta": str() as words}:
                if not self._in_words:
                    self._console.print(_INDENT, end="")
                    self._in_words = True
                self._console.print(words, end="")
                sys.stdout.flush()
            case {"type": "response.output_item.done", "item": {"type": "mcp_call"} as item}:
                self.say(f"{item['name']}({item['arguments']}) → {item['output']}", "magenta")
            case {"type": "response.in_progress", "sequence_number": int() as number} if number > 2:  # noqa: PLR2004
                self.say("(the torn words are taken back, and the model is asked again)", "yellow")
            case {"type": "response.completed"}:
                self.say("completed", "green")

    def cut(self, text: str) -> None:
        """Something violent."""
        self._line(Text(f"{_INDENT}{text}", "bold red"))

    def proofs(self, proofs: Sequence[tuple[str, str | None]]) -> None:
        """What was checked, each with the complaint that was found, if any."""
        for what, complaint in proofs:
            mark, style = ("ok", "green") if complaint is None else ("NO", "bold red")
            self._line(Text.assemble(_INDENT, (f"{mark}  ", style), what))
            if complaint is not None:
                self._line(Text(f"{_INDENT}    {complaint}", "red"))

    def _line(self, text: Text) -> None:
        if self._in_words:
            self._console.print()
            self._in_words = False
        self._console.print(text)
        sys.stdout.flush()
