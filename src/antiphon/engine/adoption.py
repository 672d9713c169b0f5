"""Making a run ready to be driven: a new one from its admission, a stored one from its rows."""

from collections.abc import Callable

import msgspec

from antiphon.core.envelope import Outcome, envelope, static_part
from antiphon.domain.errors import StoreRefusedError
from antiphon.domain.ids import run_id_of
from antiphon.domain.requests import Arrival, FrozenRequest
from antiphon.domain.tools import RequestContext
from antiphon.engine.active import ActiveRun
from antiphon.engine.admission import Admitted
from antiphon.engine.chain import RunChain
from antiphon.engine.context import new_id
from antiphon.engine.journal import RunJournal, Writing
from antiphon.engine.parts import Parts
from antiphon.engine.scopes import Scopes
from antiphon.engine.workload import Place
from antiphon.store.protocol import Claim, NewRun, RunMode, StoredItem, StoredRun

Left = Callable[[ActiveRun], None]

_frozen_decoder = msgspec.json.Decoder(FrozenRequest)


class Adopted(msgspec.Struct, frozen=True):
    """A stored run, ready: what is missing here to drive it is named in `missing`."""

    stored: StoredRun
    run: ActiveRun
    journal: RunJournal
    place: Place
    missing: tuple[str, ...]


def begin(
    parts: Parts, admitted: Admitted, arrival: Arrival, place: Place, context: RequestContext, *, left: Left
) -> ActiveRun:
    """Start a new run. Its first commit holds the admission and the first step's start."""
    frozen = admitted.frozen
    request = frozen.request
    response_id = new_id("resp")
    mode: RunMode = "background" if request.background else ("stream" if request.stream else "foreground")
    run = ActiveRun(
        parts,
        response_id=response_id,
        run_id=run_id_of(response_id),
        project=arrival.project,
        mode=mode,
        body_digest=arrival.body_digest,
        frozen=frozen,
        place=place,
        left=left,
    )
    static = static_part(frozen)
    journal = RunJournal(
        claim=Claim(run.run_id, 1, parts.owner),
        response_id=response_id,
        static=static,
        scopes=_scopes(parts, frozen, admitted.context),
        committer=parts.committer,
        channel=run.channel,
        clock=parts.clock,
        writing=_writing(admitted, arrival, mode),
        told=run.told,
        on_admitted=run.note_admitted,
        on_lost=run.journal_died,
    )
    outcome = Outcome(status="queued" if place.waits else "in_progress")
    journal.admit(
        NewRun(
            project=arrival.project,
            response_id=response_id,
            mode=mode,
            state="queued" if place.waits else "running",
            request=msgspec.json.encode(frozen),
            body_digest=arrival.body_digest,
            created_at=frozen.created_at,
            model=request.model,
            status=outcome.status,
            envelope=envelope(response_id, static, outcome),
            previous_response_id=request.previous_response_id,
            idempotency_key=arrival.idempotency_key,
            requires=admitted.requires,
        ),
        tuple(
            StoredItem(item.id, position, msgspec.json.encode(item.data))
            for position, item in enumerate(admitted.input_items)
        ),
    )
    if journal.narrator.listening:
        body = journal.body(outcome)
        journal.narrator.response("response.created", body)
        journal.narrator.response("response.queued" if place.waits else "response.in_progress", body)
    if journal.writing == "ephemeral":
        run.note_admitted()
    elif place.waits and journal.writing == "durable":
        parts.committer.kick(journal, urgent=True)
    run.start(journal, context, starts_queued=place.waits)
    return run


def _writing(admitted: Admitted, arrival: Arrival, mode: RunMode) -> Writing:
    if not admitted.frozen.request.store:
        return "ephemeral"
    plain = mode == "foreground" and not admitted.frozen.server_tools and arrival.idempotency_key is None
    return "deferred" if plain else "durable"


async def adopt(parts: Parts, stored: StoredRun, *, left: Left, into: ActiveRun | None = None) -> Adopted:
    """Bring a stored run, claimed just now, back to where its chain stands.

    `into` is the run of this process that has lost its claim: its readers and waiters stay.
    """
    frozen = _frozen_decoder.decode(stored.request)
    rows = await parts.store.list_steps(stored.run_id)
    history = await parts.store.history(stored.project, stored.response_id)
    if history is None:
        raise StoreRefusedError(f"The response of run {stored.run_id} is not there.")
    place = parts.workload.adopt()
    run = into or ActiveRun(
        parts,
        response_id=stored.response_id,
        run_id=stored.run_id,
        project=stored.project,
        mode=stored.mode,
        body_digest=stored.body_digest,
        frozen=frozen,
        place=place,
        left=left,
    )
    if into is not None:
        place.leave()
    run.note_admitted()
    journal = RunJournal(
        claim=stored.claim,
        response_id=stored.response_id,
        static=static_part(frozen),
        scopes=_scopes(parts, frozen, tuple(msgspec.json.decode(item.data) for item in history.items)),
        committer=parts.committer,
        channel=run.channel,
        clock=parts.clock,
        told=run.told,
        chain=RunChain(rows),
        commit_no=stored.commit_no,
        next_sequence_number=stored.next_sequence_number,
        on_lost=run.journal_died,
    )
    return Adopted(stored, run, journal, place, await _missing(parts, stored))


def _scopes(parts: Parts, frozen: FrozenRequest, context: tuple[dict[str, object], ...]) -> Scopes:
    limit_s = parts.limits.wall_time_s
    deadline = None if limit_s is None else frozen.created_at + limit_s
    return Scopes(frozen, context, out_of_time=lambda: deadline is not None and parts.clock() > deadline)


async def _missing(parts: Parts, stored: StoredRun) -> tuple[str, ...]:
    """What the run needs and this process does not have."""
    offered = {f"tool:{schema.name}" for schema in await parts.tools.tools(RequestContext())}
    knows = getattr(parts.inference, "knows", None)

    def known(need: str) -> bool:
        kind, _, name = need.partition(":")
        return (knows is None or knows(name)) if kind == "model" else need in offered

    return tuple(need for need in stored.requires if not known(need))
