"""What a model server's refusals mean to us.

Servers word the same refusal differently; status and a few known marks in the body decide. The body is
read for these marks only: none of its words go on to the caller, since they may hold prompts, paths,
keys or host names of the upstream. Pure; `now_s` is needed for `Retry-After` dates.
"""

import math
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import msgspec

from antiphon.domain.errors import UpstreamBrokenError, UpstreamRefusedError

_RETRYABLE = frozenset({408, 409, 425, 429})
_ERROR_STATUSES = range(400, 600)

_CONTEXT_MARKS = (
    "context_length_exceeded",
    "maximum context length",
    "exceed_context_size",
    "exceeds the available context size",
    "context length exceeded",
    "longer than the model's context length",
    "maximum model length",
    "max_model_len",
    "prompt is too long",
    "input is too long for",
)
_MODEL_MARKS = (
    "model_not_found",
    "model not found",
    "unknown model",
    "no such model",
    "invalid model name",
    "model_not_supported",
)


class _Meaning(msgspec.Struct, frozen=True):
    """How a refusal is told onwards."""

    code: str
    http_status: int
    message: str
    retryable: bool = False
    param: str | None = None
    hint: str | None = None


_CONTEXT = _Meaning(
    "context_length_exceeded",
    400,
    "The input is longer than the model's context allows.",
    param="input",
    hint="Send less, or start a new conversation.",
)
_MODEL = _Meaning(
    "model_not_found",
    400,
    "The model server does not know this model.",
    param="model",
    hint="Ask GET /v1/models which models there are, or check the address of this upstream.",
)
_AUTHENTICATION = _Meaning(
    "upstream_authentication",
    502,
    "The model server did not accept our credentials.",
    hint="Check the API key of this upstream in the configuration.",
)
_RATE = _Meaning("rate_limit_exceeded", 429, "The model server is asked too often.", retryable=True)
_UNEXPECTED = _Meaning(
    "upstream_error",
    502,
    "The model server answered with a status that is neither an answer nor an error.",
    hint="Redirects are not followed: put the final address into the configuration.",
)


def refusal(status: int, body: bytes, *, retry_after: str | None, now_s: float) -> UpstreamRefusedError:
    """The error for an answer with an error status."""
    meaning = _meaning(status, _words_in(body))
    error = UpstreamRefusedError(
        meaning.message,
        upstream_status=status,
        retryable=meaning.retryable,
        retry_after_s=_retry_after_s(retry_after, now_s),
        code=meaning.code,
        param=meaning.param,
        hint=meaning.hint,
    )
    error.http_status = meaning.http_status
    return error


def hidden_error(value: Any) -> UpstreamBrokenError:
    """The error for an error object that came under status 200, in JSON or inside a stream."""
    status = _status_in(value)
    words = _words_of(value)
    if status is None and not _is_recognised(words):
        return UpstreamBrokenError("The model server reported an error instead of an answer.")
    meaning = _meaning(status or HTTPStatus.BAD_REQUEST, words)
    error = UpstreamBrokenError(
        meaning.message,
        retryable=meaning.retryable,
        code=meaning.code,
        param=meaning.param,
        hint=meaning.hint,
    )
    error.http_status = meaning.http_status
    return error


def _meaning(status: int, words: str) -> _Meaning:
    is_client_error = HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    if any(mark in words for mark in _CONTEXT_MARKS):
        return _CONTEXT
    if status == HTTPStatus.NOT_FOUND or (is_client_error and any(mark in words for mark in _MODEL_MARKS)):
        return _MODEL
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return _AUTHENTICATION
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return _RATE
    if status < HTTPStatus.BAD_REQUEST:
        return _UNEXPECTED
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _RETRYABLE:
        return _Meaning(
            "upstream_error", 502, f"The model server failed with status {status}.", retryable=True
        )
    return _Meaning(
        "upstream_rejected",
        400,
        f"The model server refused the request with status {status}.",
        hint="Check the parameters and tools against what this model server supports.",
    )


def _is_recognised(words: str) -> bool:
    return any(mark in words for mark in (*_CONTEXT_MARKS, *_MODEL_MARKS))


def _error_in(value: Any) -> Any:
    """The error object itself, which most servers wrap in `error`."""
    return value.get("error") or value if isinstance(value, dict) else value


def _words_of(value: Any) -> str:
    """What an error says of itself, in lower case; not what it quotes of the request."""
    error = _error_in(value)
    if isinstance(error, dict):
        said = [error.get(name) for name in ("code", "type", "message", "detail")]
        error = " ".join(part for part in said if isinstance(part, str))
    return error.lower() if isinstance(error, str) else ""


def _words_in(body: bytes) -> str:
    try:
        return _words_of(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body.decode("utf-8", "replace").lower()


def _status_in(value: Any) -> int | None:
    """A status written into an error object, as vLLM, llama.cpp and OpenRouter do."""
    error = _error_in(value)
    if not isinstance(error, dict):
        return None
    for name in ("code", "status", "status_code"):
        found = error.get(name)
        if isinstance(found, str) and found.isdecimal():
            found = int(found)
        if isinstance(found, int) and found in _ERROR_STATUSES:
            return found
    return None


def _retry_after_s(value: str | None, now_s: float) -> float | None:
    """Seconds from a `Retry-After` header: a number, or a date."""
    if value is None:
        return None
    value = value.strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - now_s
        except (ValueError, TypeError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
