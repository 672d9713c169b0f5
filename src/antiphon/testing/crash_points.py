"""Arming crash points: the process dies on the spot, as by SIGKILL, at a named moment.

    ANTIPHON_CRASH_AT=tool.after_call          dies when the point is reached for the first time
    ANTIPHON_CRASH_AT=commit.after:3           at the third time
    ANTIPHON_CRASH_MARK=/path/mark             writes the name there first: a test knows that it hit

The names are in `antiphon.domain.crash_points.CRASH_POINTS`. `antiphon serve` arms itself from the
environment; nothing else does.
"""

import os
import signal
from pathlib import Path

from antiphon.domain import crash_points
from antiphon.domain.errors import ConfigurationError


def arm_from_environment() -> None:
    """Arm the point that `ANTIPHON_CRASH_AT` names; nothing when it names none."""
    wanted = os.environ.get("ANTIPHON_CRASH_AT")
    if wanted:
        name, _, count = wanted.partition(":")
        arm(name, times=int(count or 1), mark=os.environ.get("ANTIPHON_CRASH_MARK"))


def arm(name: str, *, times: int = 1, mark: str | None = None) -> None:
    """Die when `name` is reached for the `times`-th time."""
    if name not in crash_points.CRASH_POINTS:
        known = ", ".join(sorted(crash_points.CRASH_POINTS))
        raise ConfigurationError(f"There is no crash point {name!r}; known are {known}.")
    left = times

    def die_at(reached: str) -> None:
        nonlocal left
        if reached != name:
            return
        left -= 1
        if left == 0:
            if mark is not None:
                Path(mark).write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)

    crash_points.armed = die_at


def disarm() -> None:
    """No point kills any more."""
    crash_points.armed = None
