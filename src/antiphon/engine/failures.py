"""Failures as JSON: what a failed step stores, and what a failed response says."""

from typing import Any

from antiphon.domain.errors import Error, InferenceError
from antiphon.domain.tools import ToolResult

IN_DOUBT = (
    "in doubt: the call was sent, but its result is not known. It may or may not have taken effect, and is "
    "not run again. Check before repeating it."
)


def error_payload(error: Any) -> dict[str, Any]:
    """An error as a JSON object: `type, code, message, param, http_status`, and `retry_after_s` if known."""
    if isinstance(error, Error):
        payload: dict[str, Any] = {
            "type": error.type,
            "code": error.code,
            "message": error.message or str(error),
            "param": error.param,
            "http_status": error.http_status,
        }
        if isinstance(error, InferenceError) and error.retry_after_s is not None:
            payload["retry_after_s"] = error.retry_after_s
        return payload
    if isinstance(error, dict):
        return {"code": "server_error", "message": "The response failed.", **error}
    return {"code": "server_error", "message": str(error)}


def wire_error(error: dict[str, Any]) -> dict[str, str]:
    """The `error` member of a failed response: code and message."""
    return {"code": str(error["code"]), "message": str(error["message"])}


def in_doubt_error(call_id: str, detail: str = "") -> ToolResult:
    """The result of a `once` call of which nobody knows whether it happened."""
    message = f"{IN_DOUBT} ({detail})" if detail else IN_DOUBT
    return ToolResult(call_id, message, failed=True, error_code="in_doubt")
