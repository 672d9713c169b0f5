"""Bounds on what one run, and one process, may do; and how durability is bought."""

from typing import Literal

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the work.

    `max_iterations`: model calls per scope. `max_depth`: levels of nested agents. `running` and
    `waiting`: responses at work, and waiting for a place, per process. `parallel_tools`: tool calls at
    once per run. `model_attempts`: tries at one model call that broke in mid-answer. `wall_time_s`:
    seconds after its admission in which a run may begin another step, None for no limit.
    """

    max_iterations: int = 10
    max_depth: int = 8
    running: int = 256
    waiting: int = 1024
    parallel_tools: int = 16
    model_attempts: int = 3
    wall_time_s: float | None = None


class Durability(msgspec.Struct, frozen=True, kw_only=True):
    """How and when things are written, and what happens without a reader.

    `flush_window_s`: the longest time that events wait to be written together, in seconds.
    `on_disconnect`: what the end of a foreground response's last connection means; `grace_s`: how
    long its client has to come back, also after a crash. `recovery`: take over unfinished work at
    start. `max_takeovers`: takeovers without an ended step, after which a response is given up.
    """

    flush_window_s: float = 0.005
    on_disconnect: Literal["cancel", "continue"] = "cancel"
    grace_s: float = 30.0
    recovery: bool = True
    max_takeovers: int = 20
    shutdown_grace_s: float = 10.0
