"""Stories: a run and the commits that tell it, so that a check says only what it is about."""

import secrets
from typing import Any

from antiphon.domain.ids import run_id_of, time_ordered_id
from antiphon.domain.steps import StepId, StepKind, StepState, step_id_at
from antiphon.store.protocol import (
    DEFAULT_PROJECT,
    Claim,
    Commit,
    EventWindow,
    NewRun,
    ResponseUpdate,
    StepRow,
    Store,
    StoredItem,
)

START_S = 1_750_000_000.0
LEGAL_FIELDS: dict[StepState, dict[str, Any]] = {
    StepState.PENDING: {},
    StepState.PROCESSING: {"started_at": START_S + 1},
    StepState.COMPLETED: {
        "started_at": START_S + 1,
        "completed_at": START_S + 2,
        "response_payload": b'{"ok":true}',
    },
    StepState.FAILED: {"started_at": START_S + 1, "failed_at": START_S + 2, "error": b'{"code":"broken"}'},
    StepState.CANCELED: {"canceled_at": START_S + 2},
}
"""What a row of each state holds besides what all rows hold."""


class Story:
    """One run under one claim. Each call gives the next commit, which the check may have written."""

    def __init__(
        self,
        *,
        at_s: float = 0.0,
        project: str = DEFAULT_PROJECT,
        previous: str | None = None,
        key: str | None = None,
        digest: str = "digest",
        owner: str = "worker",
        random: bytes | None = None,
    ) -> None:
        self.created_at = START_S + at_s
        self.project = project
        self.response_id = time_ordered_id("resp", self.created_at, random or secrets.token_bytes(10))
        self.run_id = run_id_of(self.response_id)
        self.claim = Claim(self.run_id, 1, owner)
        self.commit_no = 0
        self.next_number = 0
        self._told = 0
        self._previous = previous
        self._key = key
        self._digest = digest

    def admitted(self, **parts: Any) -> Commit:
        """The first commit: the run, queued, and its response."""
        parts.setdefault("new_run", self.new_run())
        return self.then(**parts)

    def new_run(self, **changes: Any) -> NewRun:
        """The run as admitted."""
        values: dict[str, Any] = {
            "project": self.project,
            "response_id": self.response_id,
            "mode": "background",
            "state": "queued",
            "request": b'{"input":"hello"}',
            "body_digest": self._digest,
            "created_at": self.created_at,
            "model": "model-1",
            "status": "queued",
            "envelope": b'{"status":"queued"}',
            "previous_response_id": self._previous,
            "idempotency_key": self._key,
        }
        return NewRun(**(values | changes))

    def then(self, **parts: Any) -> Commit:
        """The next commit with these parts."""
        self.commit_no += 1
        if parts.get("windows"):
            self._told = max(self._told, parts["windows"][-1].last + 1)
        values: dict[str, Any] = {
            "claim": self.claim,
            "commit_no": self.commit_no,
            "response_id": self.response_id,
            "next_sequence_number": self._told,
        }
        return Commit(**(values | parts))

    def ended(self, *output: StoredItem, **parts: Any) -> Commit:
        """The last commit: completed, with this output."""
        return self.then(response=self.completion(*output), **parts)

    def completion(self, *output: StoredItem) -> ResponseUpdate:
        """The end of the response."""
        return ResponseUpdate(
            status="completed",
            envelope=b'{"status":"completed"}',
            ended=True,
            completed_at=self.created_at + 1,
            output=output,
        )

    def window(self, events: int = 1, step_id: StepId | None = None) -> EventWindow:
        """The next events, as one window."""
        first = self.next_number
        self.next_number += events
        frames = b"".join(b"event: e\ndata: %d\n\n" % number for number in range(first, first + events))
        return EventWindow(first, self.next_number - 1, step_id, frames)

    def step(self, ordinal: int = 0, state: StepState = StepState.PENDING, **changes: Any) -> StepRow:
        """The step at this place of the run, in this state."""
        parent = changes.get("parent_step_id")
        values: dict[str, Any] = {
            "id": step_id_at(self.run_id, parent, ordinal),
            "request_id": self.run_id,
            "ordinal": ordinal,
            "step_kind": StepKind.MODEL_CALL,
            "step_sequence": ordinal,
            "request_payload": b'{"model":"model-1"}',
            "state": state,
            "created_at": START_S,
            "updated_at": START_S,
        }
        return StepRow(**(values | LEGAL_FIELDS[state] | changes))


def item(text: str, position: int = 0) -> StoredItem:
    """A message item."""
    return StoredItem(f"msg_{text}", position, b'{"type":"message","text":"%b"}' % text.encode())


async def written(store: Store, *commits: Commit) -> None:
    """Write these commits one after the other; each must succeed."""
    for commit in commits:
        outcomes = await store.commit([commit])
        if outcomes != [None]:
            raise AssertionError(f"commit {commit.commit_no} was not written: {outcomes!r}")


async def everything_of(store: Store, story: Story) -> dict[str, Any]:
    """All that can be read of a run: two of these are equal when nothing was changed in between."""
    return {
        "run": await store.get_run(story.run_id),
        "response": await store.read_response(story.project, story.response_id),
        "steps": await store.list_steps(story.run_id),
        "events": await store.events(story.response_id, -1, limit=1000),
        "input": await store.input_items(story.project, story.response_id, limit=1000),
        "history": await store.history(story.project, story.response_id),
    }
