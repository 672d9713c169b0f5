"""Errors on the wire: translated here, once.

The body is always `{"error": {"message", "type", "param", "code"}}`. Nothing of an upstream's body, and
no traceback, ever reaches a client.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.domain.errors import Error, InferenceError, RateLimitError, http_status_of

encode = msgspec.json.encode

TYPE_OF_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}


class Answer(msgspec.Struct, frozen=True):
    """A whole HTTP answer."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


def answer_to(error: Error, *, admitted: bool = False) -> Answer:
    """The answer for an error of ours. After admission an automatic retry would start nothing new."""
    retry_after_s = error.retry_after_s if isinstance(error, RateLimitError | InferenceError) else None
    message = f"{error} {error.hint}" if error.hint else str(error)
    payload = {"message": message, "type": error.type, "param": error.param, "code": error.code}
    answer = _answer(error.http_status, payload, retry_after_s=retry_after_s, admitted=admitted)
    if isinstance(error, RateLimitError) and error.limit is not None:
        return Answer(answer.status, answer.body, (*answer.headers, *_rate_limit(error, error.limit)))
    return answer


def answer_to_failure(failure: Mapping[str, Any]) -> Answer:
    """The answer for a foreground response that ended `failed`: its error as an HTTP status."""
    code = failure.get("code")
    status = int(failure.get("http_status") or http_status_of(code))
    payload = {
        "message": failure.get("message"),
        "type": failure.get("type") or TYPE_OF_STATUS.get(status, "server_error"),
        "param": failure.get("param"),
        "code": code,
    }
    return _answer(status, payload, retry_after_s=failure.get("retry_after_s"), admitted=True)


def _rate_limit(error: RateLimitError, limit: int) -> tuple[tuple[bytes, bytes], ...]:
    return (
        (b"x-ratelimit-limit-requests", str(limit).encode()),
        (b"x-ratelimit-remaining-requests", b"0"),
        (b"x-ratelimit-reset-requests", f"{error.retry_after_s:g}s".encode()),
    )


def _answer(
    status: int, payload: Mapping[str, Any], *, retry_after_s: float | None, admitted: bool
) -> Answer:
    headers: list[tuple[bytes, bytes]] = []
    if TYPE_OF_STATUS.get(status) is not None:
        payload = {**payload, "type": TYPE_OF_STATUS[status]}
    if retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, round(retry_after_s))).encode()))
    if status == 401:  # noqa: PLR2004 - the status asks for the header
        headers.append((b"www-authenticate", b"Bearer"))
    if admitted:
        headers.append((b"x-should-retry", b"false"))
    return Answer(status, encode({"error": payload}), tuple(headers))
