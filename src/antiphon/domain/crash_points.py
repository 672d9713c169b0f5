"""Named moments at which a process may be made to die, for the tests that prove it does no harm.

`reach("name")` costs one comparison and does nothing unless a test has armed the points
(`antiphon.testing.crash_points`). The names and what they stand for are in `CRASH_POINTS`.
"""

from collections.abc import Callable

CRASH_POINTS: dict[str, str] = {
    "admission.before_commit": "a run is made, nothing of it is written",
    "admission.after_commit": "the run is written, nobody has been told",
    "commit.before": "a group is about to be written",
    "commit.after": "the group is durable, its journals do not know yet",
    "publish.before": "an entry is durable, its events are not told",
    "publish.after": "its events are told",
    "model.before_request": "the step is marked as started, the request has not left",
    "model.first_event": "the first piece of an answer has come",
    "model.answered": "the answer is whole, nothing of its end is written",
    "tool.before_call": "the step is marked as started, the tool has not been called",
    "tool.after_call": "the tool has acted, its result is not written",
    "tool.between_siblings": "one sibling has ended, others have not",
    "end.before_commit": "the response has ended in memory only",
    "end.after_commit": "the terminal event is durable, nobody has been told",
    "recovery.after_claim": "runs are taken over, none is mended",
    "recovery.mended": "open steps are mended in memory only",
    "cancel.after_claim": "the run is seized for its cancellation, which is not written",
    "delete.before": "the response is about to be hidden and erased",
}

armed: Callable[[str], None] | None = None


def reach(name: str) -> None:
    """Say that this moment has come."""
    if armed is not None:
        armed(name)
