"""`execute`: a whole turn from the composable step functions, without a claim.

Rehydrate, loop, assemble, persist: what the engine does, with a journal that writes nothing. **Not
durable**: when the program dies in the middle, nobody resumes the turn.
"""

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.core.context import output_of
from antiphon.core.envelope import Outcome, static_part
from antiphon.core.input_items import check_pairs
from antiphon.core.reading import read_request
from antiphon.domain.ids import run_id_of
from antiphon.domain.requests import FrozenRequest, ResponseRequest
from antiphon.domain.responses import Response
from antiphon.engine.context import ExecutionContext
from antiphon.engine.functions import persist_response, rehydrate_conversation
from antiphon.engine.journal import RunJournal
from antiphon.engine.journal_sink import used_by
from antiphon.engine.live import Channel
from antiphon.engine.loop import run_response_loop
from antiphon.engine.parts import FrozenTools
from antiphon.engine.scopes import Scopes
from antiphon.store.protocol import Claim


async def execute(request: ResponseRequest | Mapping[str, Any], ctx: ExecutionContext) -> Response:
    """Drive one turn to its end and give its response.

    `request` is what `POST /v1/responses` takes. Raises `RequestError`, `LoopError`, `StoreError`.
    """
    if not isinstance(request, ResponseRequest):
        request = read_request(dict(request), ctx.new_id)
    conversation = await rehydrate_conversation(request.previous_response_id, ctx)
    items = [item.data for item in (*conversation.history, *request.input)]
    check_pairs(items)
    declared = tuple(tool for tool in request.tools if tool["type"] == "function")
    clients = {tool["name"] for tool in declared}
    offered = await ctx.tools.tools(ctx.request_context)
    frozen = FrozenRequest(
        request=request,
        created_at=time.time(),
        server_tools=tuple(schema for schema in offered if schema.name not in clients),
        client_tools=declared,
    )
    response_id = ctx.new_id("resp")
    journal = RunJournal(
        claim=Claim(run_id_of(response_id), 0, ""),
        response_id=response_id,
        static=static_part(frozen),
        scopes=Scopes(frozen, items),
        committer=None,
        channel=Channel(),
        clock=time.time,
        writing="ephemeral",
        told=False,
    )
    payload = await run_response_loop(
        journal,
        FrozenTools(ctx.tools, frozen),
        ctx.request_context,
        ctx.inference,
        event_sink=None,
        request_id=run_id_of(response_id),
        config=ctx.config,
    )
    outcome = Outcome(
        status=payload["status"],
        completed_at=int(time.time()) if payload["status"] == "completed" else None,
        incomplete_details=payload.get("incomplete_details"),
        usage=used_by(journal),
    )
    wire = msgspec.json.decode(journal.body(outcome))
    wire["output"] = output_of(journal.chain.scope(None), not_run=_reason(payload))
    response = msgspec.structs.replace(Response.from_dict(wire), input_items=request.input)
    await persist_response(response, None, request.previous_response_id, ctx)
    return response


def _reason(payload: Mapping[str, Any]) -> str | None:
    details = payload.get("incomplete_details")
    return None if details is None else str(details["reason"])
