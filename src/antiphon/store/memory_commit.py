"""Writing one entry into memory: first looked at to its end, so that nothing of a refused one stays."""

from collections.abc import Iterable

from msgspec.structs import asdict, replace

from antiphon.domain.steps import StepId
from antiphon.store.entries import (
    NUMBERS_USED,
    OTHER_RESPONSE,
    claim_lost,
    key_taken,
    problem_of_commit,
    refused,
    state_after,
)
from antiphon.store.memory_tables import Kept, Tables
from antiphon.store.protocol import Commit, CommitOutcome, NewRun, StepRow, StoredResponse, StoredRun
from antiphon.store.rows import place_of, problem_of_replacement, problem_of_row


def write_entry(tables: Tables, commit: Commit) -> CommitOutcome:
    """Write the entry whole, or say why nothing of it was written."""
    new, claim = commit.new_run, commit.claim
    if new is not None and new.idempotency_key is not None:
        holder = tables.keys.get((new.project, new.idempotency_key))
        if holder is not None:
            return key_taken(new.idempotency_key, *holder)
    problem = problem_of_commit(commit)
    if problem is not None:
        return refused(commit, problem)
    run = tables.runs.get(claim.run_id)
    if new is not None:
        if run is not None or new.response_id in tables.responses:
            return refused(commit, "the run or the response exists already")
        kept = _fresh(new, claim.run_id)
    elif run is None or not _allows(tables, run, commit):
        return claim_lost(claim)
    elif run.response_id != commit.response_id:
        return refused(commit, OTHER_RESPONSE)
    else:
        kept = tables.responses[commit.response_id]
    staged: dict[StepId, StepRow] = {}
    problem = (
        _reuse_of_numbers(run, commit)
        or _stage_steps(tables, commit, staged)
        or _clash_of_items(commit, kept)
    )
    if problem is not None:
        return refused(commit, problem)
    _apply(tables, commit, kept, staged.values())
    return None


def _allows(tables: Tables, run: StoredRun, commit: Commit) -> bool:
    return tables.holds(commit.claim) and run.commit_no < commit.commit_no


def _reuse_of_numbers(run: StoredRun | None, commit: Commit) -> str | None:
    if run is not None and commit.windows and commit.windows[0].first < run.next_sequence_number:
        return NUMBERS_USED
    return None


def _stage_steps(tables: Tables, commit: Commit, staged: dict[StepId, StepRow]) -> str | None:
    places = set()
    for row in commit.new_steps:
        place = place_of(row)
        if row.id in tables.steps or row.id in staged:
            return f"step {row.id!r} exists already"
        if place in tables.places or place in places:
            return f"a step stands at {place} already"
        if (problem := problem_of_row(row)) is not None:
            return problem
        staged[row.id] = row
        places.add(place)
    for row in commit.changed_steps:
        old = staged.get(row.id) or tables.steps.get(row.id)
        if (problem := problem_of_replacement(old, row)) is not None:
            return problem
        staged[row.id] = row
    return None


def _clash_of_items(commit: Commit, kept: Kept) -> str | None:
    output = commit.response.output if commit.response is not None else ()
    for present, arriving in ((kept.input, commit.input_items), (kept.output, output)):
        positions = {item.position for item in arriving}
        if len(positions) != len(arriving) or positions & present.keys():
            return "an item stands at this position already"
    return None


def _apply(tables: Tables, commit: Commit, kept: Kept, steps: Iterable[StepRow]) -> None:
    if commit.new_run is not None:
        _admit(tables, commit, commit.new_run, kept)
    else:
        run = tables.runs[commit.claim.run_id]
        tables.runs[run.run_id] = replace(
            run,
            commit_no=commit.commit_no,
            next_sequence_number=max(run.next_sequence_number, commit.next_sequence_number),
            takeovers=0 if commit.progressed else run.takeovers,
            owner=None if commit.released else run.owner,
            state=state_after(commit) or run.state,
        )
    for row in steps:
        tables.put_step(row)
    if commit.struck_steps:
        kept.windows = [window for window in kept.windows if window.step_id not in commit.struck_steps]
    kept.windows.extend(commit.windows)
    kept.input |= {item.position: item for item in commit.input_items}
    update = commit.response
    if update is not None:
        kept.output |= {item.position: item for item in update.output}
        kept.row = replace(
            kept.row, status=update.status, envelope=update.envelope, completed_at=update.completed_at
        )


def _admit(tables: Tables, commit: Commit, new: NewRun, kept: Kept) -> None:
    claim = commit.claim
    tables.runs[claim.run_id] = StoredRun(
        run_id=claim.run_id,
        project=new.project,
        response_id=new.response_id,
        state=state_after(commit) or new.state,
        mode=new.mode,
        request=new.request,
        body_digest=new.body_digest,
        created_at=new.created_at,
        fence=claim.fence,
        owner=None if commit.released else claim.owner,
        commit_no=commit.commit_no,
        takeovers=0,
        next_sequence_number=commit.next_sequence_number,
        keyed=new.idempotency_key is not None,
        requires=new.requires,
    )
    kept.number = tables.next_number()
    tables.responses[new.response_id] = kept
    if new.previous_response_id is not None:
        tables.children.setdefault(new.previous_response_id, set()).add(new.response_id)
    if new.idempotency_key is not None:
        tables.keys[new.project, new.idempotency_key] = (new.response_id, new.body_digest)


def _fresh(new: NewRun, run_id: str) -> Kept:
    names = (
        "response_id",
        "project",
        "status",
        "model",
        "mode",
        "created_at",
        "envelope",
        "previous_response_id",
    )
    values = asdict(new)
    row = StoredResponse(run_id=run_id, **{name: values[name] for name in names})
    return Kept(row, 0, {}, {}, [])
