"""Commits, looked at before they are written: what every store refuses, and what follows from one.

Pure, and shared by every store. A store adds what only it can see: claims, keys, rows that stand.
"""

from antiphon.domain.errors import ClaimLost, DuplicateResponseError, StoreRefusedError
from antiphon.store.protocol import Claim, Commit, RunState

OTHER_RESPONSE = "its response is not the run's"
NUMBERS_USED = "its events have sequence numbers that were used before"


def problem_of_commit(commit: Commit) -> str | None:
    """Why no store may ever write this entry; None when it is sound in itself."""
    new, run_id = commit.new_run, commit.claim.run_id
    if new is not None and new.response_id != commit.response_id:
        return OTHER_RESPONSE
    for row in commit.new_steps:
        if row.request_id != run_id:
            return f"step {row.id!r} belongs to another run"
    for row in commit.changed_steps:
        if row.request_id != run_id:
            return f"step {row.id!r} belongs to another run"
    told = -1
    for window in commit.windows:
        if not told < window.first <= window.last < commit.next_sequence_number:
            return "the windows of a commit rise, and end below its next sequence number"
        told = window.last
    if commit.response is not None and commit.response.output and not commit.response.ended:
        return "only a response that has ended has output"
    return None


def state_after(commit: Commit) -> RunState | None:
    """The state that the run has after this commit; None when it stays as it is."""
    if commit.response is not None and commit.response.ended:
        return "ended"
    if commit.run_state is None and commit.new_run is not None:
        return commit.new_run.state
    return commit.run_state


def claim_lost(claim: Claim) -> ClaimLost:
    """The error for a claim that no longer holds."""
    return ClaimLost(f"run {claim.run_id} is no longer under fence {claim.fence} of {claim.owner}")


def refused(commit: Commit, why: object) -> StoreRefusedError:
    """The error for an entry that can never be written."""
    return StoreRefusedError(f"commit {commit.commit_no} of run {commit.claim.run_id} was refused: {why}")


def key_taken(key: str, response_id: str, body_digest: str) -> DuplicateResponseError:
    """The error for an idempotency key that somebody used before."""
    return DuplicateResponseError(
        f"the idempotency key {key!r} is taken by {response_id}",
        response_id=response_id,
        body_digest=body_digest,
    )
