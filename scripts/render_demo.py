"""Draw docs/images/demo.svg: run `antiphon demo` and keep what it prints, with its colours.

    python scripts/render_demo.py

Nothing is edited: a run that fails draws nothing. The picture refers to no file or font elsewhere.
"""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

TARGET = Path(__file__).resolve().parent.parent / "docs" / "images" / "demo.svg"
COLUMNS = 112

_TAKES_AT_MOST_S = 120
_FONTS_ELSEWHERE = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)


def printed() -> str:
    """The output of one run, with its colours as escape sequences."""
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    done = subprocess.run(
        [sys.executable, "-m", "antiphon", "demo"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TAKES_AT_MOST_S,
        check=True,
    )
    return done.stdout


def picture(output: str) -> str:
    """The output as it looks on a terminal."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(Text.from_ansi(output.rstrip("\n")))
    own_fonts = _FONTS_ELSEWHERE.sub("", CONSOLE_SVG_FORMAT).replace(
        "Fira Code, monospace", "Fira Code, DejaVu Sans Mono, Menlo, Consolas, monospace"
    )
    return console.export_svg(title="antiphon demo", theme=MONOKAI, code_format=own_fonts, unique_id="demo")


def main() -> int:
    """Run, draw, write."""
    try:
        output = printed()
    except subprocess.CalledProcessError as failed:
        print(f"antiphon demo failed; nothing was drawn.\n{failed.stdout}{failed.stderr}", file=sys.stderr)
        return 1
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(picture(output), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
