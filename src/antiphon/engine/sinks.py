"""A plain event sink, made into what the loop talks to.

Used when `run_response_loop` is called with a sink of the caller's own, or none: the response is opened
with `response.created` and closed with exactly one terminal event. When the chain was begun before, what it
has put out is told first, so that each call of the loop tells a whole stream. The engine has a sink of its
own (`journal_sink`) that writes before it tells.
"""

import inspect
import time
from collections import deque
from typing import Any

import msgspec

from antiphon.core.narration import Narrator
from antiphon.core.replay import tell_items
from antiphon.domain.events import Event
from antiphon.domain.steps import StepId
from antiphon.engine.failures import error_payload, wire_error
from antiphon.engine.journal_sink import not_run_reason
from antiphon.engine.protocol import Ending, EventSink, MultiStepStore, ResponseSink
from antiphon.engine.stopping import StopSignal


class PlainSink(ResponseSink):
    """A `ResponseSink` around an `EventSink` (or around nobody)."""

    def __init__(self, sink: EventSink | None, store: MultiStepStore, request_id: str) -> None:
        self._sink = sink
        self._store = store
        self._request_id = request_id
        self._told: deque[Event] = deque()
        self.narrator = Narrator(None if sink is None else self._told.append)
        self.stop = StopSignal()

    async def begin(self) -> None:
        """Tell `response.created` and `response.in_progress`, and what a former call has put out."""
        begun = await self._body("in_progress")
        if not self.narrator.listening:
            self.narrator.output_index = len(begun["output"])
        else:
            body = msgspec.json.encode({**begun, "output": []})
            self.narrator.response("response.created", body)
            self.narrator.response("response.in_progress", body)
            tell_items(self.narrator, begun["output"])
            await self.flush()

    async def flush(self) -> None:
        """Hand over what has been told."""
        if self._sink is None:
            return
        while self._told:
            waiting = self._sink.emit(self._told.popleft())
            if inspect.isawaitable(waiting):
                await waiting

    def enter_step(self, step_id: StepId | None) -> None:
        """Nothing is kept, so nothing can be struck."""

    async def end(self, ending: Ending) -> None:
        """Tell the one terminal event, carrying the response as the store assembles it."""
        if self.narrator.listening:
            body = await self._body(ending.status, ending)
            self._close_open_calls(body["output"], not_run_reason(ending))
            if ending.error is not None:
                self.narrator.error(error_payload(ending.error))
            self.narrator.ended(ending.status, msgspec.json.encode(body))
            await self.flush()

    def _close_open_calls(self, output: list[dict[str, Any]], reason: str) -> None:
        """Calls that never ran are shown as not run, in the stream and in the response at its end."""
        for index, item in enumerate(output):
            if item["type"] == "mcp_call" and item["status"] == "in_progress":
                output[index] = {**item, "status": "incomplete", "output": f"not run: {reason}"}
                self.narrator.item_done(index, output[index])

    async def _body(self, status: str, ending: Ending | None = None) -> dict[str, Any]:
        body = {**await self._store.assemble_response(self._request_id), "status": status}
        ended_at = body.get("completed_at") or int(time.time())
        body["completed_at"] = ended_at if status == "completed" else None
        if ending is not None:
            body["error"] = wire_error(ending.error) if ending.error else None
            body["incomplete_details"] = ending.incomplete_details
        return body
