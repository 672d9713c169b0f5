"""Every error that Antiphon raises, in one tree.

    Error                                   type, code, HTTP status, param, hint
    ├── RequestError                        the caller's mistake
    │   ├── InvalidRequestError     400
    │   ├── AuthenticationError     401
    │   ├── NotFoundError           404
    │   ├── MethodNotAllowedError   405
    │   ├── ConflictError           409
    │   ├── PayloadTooLargeError    413
    │   ├── UnsupportedMediaError   415
    │   ├── KeyReusedError          422
    │   ├── UpgradeRequiredError    426     no WebSocket here
    │   └── RateLimitError          429     says when to come back
    ├── ServerStoppingError         503     come back to the next process
    ├── ConfigurationError                  a file, flag or environment variable is wrong
    ├── StoreError                  503
    │   ├── StoreUnavailableError           full, locked, gone: nothing was written, try again
    │   ├── StoreRefusedError               this one entry can never be written
    │   ├── ClaimLost                       somebody else owns the run now: stop, publish nothing
    │   ├── DuplicateStep                   a step already stands at this place
    │   ├── DuplicateResponseError          an idempotency key was used before
    │   ├── StepNotFoundError
    │   ├── StepAlreadyTerminal             a terminal step keeps its first result
    │   └── IllegalMoveError                not in the table of legal moves
    ├── InferenceError              502
    │   ├── UpstreamRefusedError            it answered with an error status
    │   ├── UpstreamUnreachableError        no connection
    │   ├── UpstreamTimeoutError    504
    │   └── UpstreamBrokenError             it answered with what is not an answer
    ├── ExecutorError                       a call could not be handed to a tool
    ├── ToolError                           the model hears of it
    │   ├── ToolNotFoundError               (also an ExecutorError)
    │   ├── ToolExecutionError              (also an ExecutorError)
    │   ├── ToolInvalidArgumentsError
    │   └── ToolTimeoutError
    ├── SerializationError
    └── LoopError                           why `run_response_loop` stopped without a payload
        ├── LoopFailedError                 the transition said so
        ├── MaxIterationsExceededError
        ├── MaxDepthExceededError
        ├── EmptyActionError
        ├── LoopStoreError                  the chain is left resumable
        ├── LoopExecutorError
        └── LoopInterruptedError            somebody has to answer first

Errors are translated to the wire once, in `server.errors`.
"""

from typing import Any, ClassVar


class Error(Exception):
    """The root: what went wrong, where (`param`), and what to do next (`hint`)."""

    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str] = "server_error"
    http_status: int = 500

    def __init__(
        self,
        message: str = "",
        *,
        code: str | None = None,
        param: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.param = param
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class RequestError(Error):
    """The caller's mistake; repeating the same request gives the same answer."""

    type = "invalid_request_error"
    default_code = "invalid_request"
    http_status = 400


class InvalidRequestError(RequestError):
    """The request is malformed or asks for what cannot be; `param` holds the JSON path."""


class AuthenticationError(RequestError):
    """No API key, or one that is not known here."""

    type = "authentication_error"
    default_code = "invalid_api_key"
    http_status = 401


class NotFoundError(RequestError):
    """An id in the path that this project does not have."""

    type = "not_found_error"
    default_code = "not_found"
    http_status = 404


class MethodNotAllowedError(RequestError):
    """The path exists, the method does not."""

    default_code = "method_not_allowed"
    http_status = 405


class ConflictError(RequestError):
    """The request disagrees with the state of what it names."""

    type = "conflict_error"
    default_code = "conflict"
    http_status = 409


class PayloadTooLargeError(RequestError):
    """The body is larger than the server accepts."""

    default_code = "request_too_large"
    http_status = 413


class UnsupportedMediaError(RequestError):
    """A content encoding or type that the server does not read."""

    default_code = "unsupported_media_type"
    http_status = 415


class KeyReusedError(RequestError):
    """An `Idempotency-Key` that came with another body before."""

    default_code = "idempotency_key_reused"
    http_status = 422


class UpgradeRequiredError(RequestError):
    """A WebSocket was asked for where there is none; the client goes on over HTTP."""

    default_code = "websocket_not_available"
    http_status = 426


class RateLimitError(RequestError):
    """Too much work is running and waiting; come back after `retry_after_s` seconds.

    `limit` is how many requests may be at work at once.
    """

    type = "rate_limit_error"
    default_code = "rate_limit_exceeded"
    http_status = 429

    def __init__(
        self, message: str = "", *, retry_after_s: float = 1.0, limit: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(message, **kwargs)
        self.retry_after_s = retry_after_s
        self.limit = limit


class ServerStoppingError(Error):
    """The server is shutting down. Work that was admitted goes on in the next process."""

    default_code = "server_stopping"
    http_status = 503


class ConfigurationError(Error):
    """The configuration cannot be used; the message names the place and the remedy."""

    default_code = "configuration_error"


class StoreError(Error):
    """The store could not do what it was asked."""

    default_code = "store_error"
    http_status = 503


class StoreUnavailableError(StoreError):
    """The store is full, locked or gone. Nothing was written; the same call may succeed later."""

    default_code = "store_unavailable"


class StoreRefusedError(StoreError):
    """The store can never write this entry, whatever comes after."""

    default_code = "store_refused"
    http_status = 500


class ClaimLost(StoreError):
    """The fence has risen: somebody else owns the run. Stop at once and publish nothing."""

    default_code = "claim_lost"


class DuplicateStep(StoreError):
    """A step already stands at this place; `existing_id` names it. Nothing was changed."""

    default_code = "duplicate_step"

    def __init__(self, message: str = "", *, existing_id: str = "") -> None:
        super().__init__(message)
        self.existing_id = existing_id


class DuplicateResponseError(StoreError):
    """An idempotency key of this project is taken by `response_id`, with body digest `body_digest`."""

    default_code = "duplicate_response"

    def __init__(self, message: str = "", *, response_id: str = "", body_digest: str = "") -> None:
        super().__init__(message)
        self.response_id = response_id
        self.body_digest = body_digest


class StepNotFoundError(StoreError):
    """No step has this id."""

    default_code = "step_not_found"


class StepAlreadyTerminal(StoreError):
    """The step has ended; its first result stays."""

    default_code = "step_already_terminal"


class IllegalMoveError(StoreError):
    """The move is not in the table of legal moves (`domain.steps.LEGAL_MOVES`)."""

    default_code = "illegal_move"


class InferenceError(Error):
    """The model server did not give an answer.

    `retryable` says that the same request may succeed later, `retry_after_s` when the upstream asked
    us to come back, `torn` that part of an answer had already been received.
    """

    default_code = "upstream_error"
    http_status = 502

    def __init__(
        self,
        message: str = "",
        *,
        retryable: bool = True,
        retry_after_s: float | None = None,
        torn: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(message, **kwargs)
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.torn = torn


class UpstreamRefusedError(InferenceError):
    """The model server answered with an error status; `upstream_status` keeps it."""

    def __init__(self, message: str = "", *, upstream_status: int = 500, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.upstream_status = upstream_status


class UpstreamUnreachableError(InferenceError):
    """No connection to the model server."""

    default_code = "upstream_unreachable"


class UpstreamTimeoutError(InferenceError):
    """The model server was silent for longer than allowed."""

    default_code = "upstream_timeout"
    http_status = 504


class UpstreamBrokenError(InferenceError):
    """The model server answered with something that is not an answer: HTML, nothing, a cut stream."""

    default_code = "upstream_broken"


class ExecutorError(Error):
    """A call could not be handed to a tool: `ExecutorError.NotFound` or `ExecutorError.ExecutionError`."""

    NotFound: ClassVar[type["ToolNotFoundError"]]
    ExecutionError: ClassVar[type["ToolExecutionError"]]


class ToolError(Error):
    """A tool did not give a result. The model hears of it; the response goes on."""

    default_code = "tool_error"
    NotFound: ClassVar[type["ToolNotFoundError"]]
    ExecutionError: ClassVar[type["ToolExecutionError"]]
    InvalidArguments: ClassVar[type["ToolInvalidArgumentsError"]]
    Timeout: ClassVar[type["ToolTimeoutError"]]


class ToolNotFoundError(ToolError, ExecutorError):
    """No tool has this name here."""

    default_code = "tool_not_found"

    def __str__(self) -> str:
        return f"Tool not found: {self.message}"


class ToolExecutionError(ToolError, ExecutorError):
    """The tool ran and failed."""

    default_code = "tool_execution_error"

    def __str__(self) -> str:
        return f"Tool execution error: {self.message}"


class ToolInvalidArgumentsError(ToolError):
    """The arguments do not fit the tool's schema; the message holds the JSON path."""

    default_code = "tool_invalid_arguments"

    def __str__(self) -> str:
        return f"Invalid arguments: {self.message}"


class ToolTimeoutError(ToolError):
    """The tool did not answer in time. Whether it acted is not known."""

    default_code = "tool_timeout"

    def __str__(self) -> str:
        return f"Tool timeout: {self.message}"


ToolError.NotFound = ExecutorError.NotFound = ToolNotFoundError
ToolError.ExecutionError = ExecutorError.ExecutionError = ToolExecutionError
ToolError.InvalidArguments = ToolInvalidArgumentsError
ToolError.Timeout = ToolTimeoutError


class SerializationError(Error):
    """A value cannot be written as JSON, or bytes are not the JSON they should be."""

    default_code = "serialization_error"


class LoopError(Error):
    """Why `run_response_loop` stopped without a payload. The variants are attributes of this class."""

    default_code = "loop_error"
    Failed: ClassVar[type["LoopFailedError"]]
    MaxIterationsExceeded: ClassVar[type["MaxIterationsExceededError"]]
    MaxDepthExceeded: ClassVar[type["MaxDepthExceededError"]]
    EmptyAction: ClassVar[type["EmptyActionError"]]
    Store: ClassVar[type["LoopStoreError"]]
    Executor: ClassVar[type["LoopExecutorError"]]
    Interrupted: ClassVar[type["LoopInterruptedError"]]


class LoopFailedError(LoopError):
    """The transition said `Fail`; `payload` is its error."""

    default_code = "response_failed"

    def __init__(self, payload: Any) -> None:
        message = payload.get("message") if isinstance(payload, dict) else None
        super().__init__(str(message or payload))
        self.payload = payload


class MaxIterationsExceededError(LoopError):
    """The scope has made as many model calls as its limit allows."""

    default_code = "max_iterations"


class MaxDepthExceededError(LoopError):
    """Agents are nested deeper than the limit allows."""

    default_code = "max_depth_exceeded"


class EmptyActionError(LoopError):
    """The transition asked to append no steps: nothing could ever follow."""

    default_code = "empty_action"


class LoopStoreError(LoopError):
    """The store failed (`__cause__` says how); the chain can be resumed."""

    default_code = "store_error"
    http_status = 503


class LoopExecutorError(LoopError):
    """The executor could not take a call (`__cause__` says why)."""

    default_code = "executor_error"


class LoopInterruptedError(LoopError):
    """The scope waits for an answer; `interruptions` are the questions."""

    default_code = "interrupted"

    def __init__(self, interruptions: tuple[Any, ...] = ()) -> None:
        super().__init__(f"waiting for {len(interruptions)} answer(s)")
        self.interruptions = interruptions


def http_status_of(code: str | None) -> int:
    """The HTTP status that belongs to an error code of this tree; 500 for codes from elsewhere."""
    pending: list[type[Error]] = [Error]
    while pending:
        kind = pending.pop()
        if kind.default_code == code:
            return kind.http_status
        pending.extend(kind.__subclasses__())
    return 500


LoopError.Failed = LoopFailedError
LoopError.MaxIterationsExceeded = MaxIterationsExceededError
LoopError.MaxDepthExceeded = MaxDepthExceededError
LoopError.EmptyAction = EmptyActionError
LoopError.Store = LoopStoreError
LoopError.Executor = LoopExecutorError
LoopError.Interrupted = LoopInterruptedError
