"""Telling that a server-side call has ended: the same events from the loop and from recovery."""

from typing import Any

from antiphon.core.context import execution_error, mcp_call
from antiphon.core.narration import Narrator
from antiphon.domain.tools import ToolResult


def tell_tool_end(narrator: Narrator, payload: dict[str, Any], result: ToolResult) -> None:
    """The events of a server-side call that has ended."""
    index = payload.get("output_index")
    if not narrator.listening or index is None:
        return
    call = {
        "id": payload["item_id"],
        "server_label": payload["server_label"],
        "name": payload["name"],
        "arguments": payload["arguments"],
    }
    item = mcp_call(call)
    item["status"] = "failed" if result.failed else "completed"
    item["error" if result.failed else "output"] = (
        execution_error(result.output) if result.failed else result.output
    )
    event = "response.mcp_call.failed" if result.failed else "response.mcp_call.completed"
    narrator.item_event(event, payload["item_id"], index)
    narrator.item_done(index, item)
