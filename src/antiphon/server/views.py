"""Lists as the wire has them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.core.envelope import joined, with_output
from antiphon.domain.steps import StepKind, short_step_id
from antiphon.store.protocol import Page, ResponsePage, StepRow

encode = msgspec.json.encode
decode = msgspec.json.decode

PREVIEW_CHARACTERS = 200


def _list(data: bytes, ids: Sequence[str], *, has_more: bool) -> bytes:
    ends = encode(
        {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None, "has_more": has_more}
    )
    return b'{"object":"list","data":%b,%b' % (data, ends[1:])


def items_page(page: Page) -> bytes:
    """A page of items."""
    ids = [item.item_id for item in page.items]
    return _list(joined([item.data for item in page.items]), ids, has_more=page.has_more)


def responses_page(page: ResponsePage) -> bytes:
    """A page of responses, without their output."""
    ids = [row.response_id for row in page.responses]
    bodies = [with_output(row.envelope, b"[]") for row in page.responses]
    return _list(joined(bodies), ids, has_more=page.has_more)


def steps_list(rows: Sequence[StepRow]) -> bytes:
    """All steps of a run, each with what a person wants to see of it."""
    steps = [_step(row) for row in rows]
    return _list(encode(steps), [row.id for row in rows], has_more=False)


def _step(row: StepRow) -> dict[str, Any]:
    request = decode(row.request_payload)
    response = None if row.response_payload is None else decode(row.response_payload)
    is_model = row.step_kind is StepKind.MODEL_CALL
    return {
        "id": row.id,
        "object": "response.step",
        "short_id": short_step_id(row.id),
        "kind": row.step_kind,
        "state": row.state,
        "ordinal": row.ordinal,
        "sequence": row.step_sequence,
        "parent_step_id": row.parent_step_id,
        "prev_step_id": row.prev_step_id,
        "retry_attempt": row.retry_attempt,
        "name": request.get("model" if is_model else "name"),
        "effect": None if is_model else request.get("effect"),
        "arguments": None if is_model else request.get("arguments"),
        "output_preview": _preview(response, is_model=is_model),
        "started_at": row.started_at,
        "ended_at": row.completed_at or row.failed_at or row.canceled_at,
        "error": None if row.error is None else decode(row.error),
    }


def _preview(response: Any, *, is_model: bool) -> str | None:
    if response is None:
        return None
    if not is_model:
        return str(response.get("output", ""))[:PREVIEW_CHARACTERS]
    texts = [part.get("text", "") for item in response["output"] for part in item.get("content", ())]
    calls = [f"{item['name']}()" for item in response["output"] if item["type"] == "function_call"]
    return " ".join(filter(None, [*texts, *calls]))[:PREVIEW_CHARACTERS]
