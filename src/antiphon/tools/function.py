"""Python functions as tools: `@tool`, and the executor that runs them.

A decorated function stays the function it was. What the decoration knows hangs beside it as a
`FunctionTool`; `FunctionToolExecutor` runs many of them behind the `ToolExecutor` protocol.

Async functions are awaited, others run in threads (`threads`). A timeout cancels an async function; a
synchronous one cannot be ended and runs on unseen, so whether it acted is not known.
"""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, overload

import msgspec

from antiphon.domain.errors import (
    ConfigurationError,
    ToolError,
    ToolExecutionError,
    ToolNotFoundError,
    ToolTimeoutError,
)
from antiphon.domain.tools import RequestContext, ToolEffect, ToolSchema
from antiphon.observe.logs import get_logger
from antiphon.tools.context import ToolContext, current_attempt
from antiphon.tools.schema import Signature, read_signature
from antiphon.tools.threads import run_in_thread
from antiphon.tools.validation import ArgumentsValidator

F = TypeVar("F", bound=Callable[..., Any])

log = get_logger("antiphon.tools")

_ATTRIBUTE = "__antiphon_tool__"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MOST_THREADS = 32


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function and what is declared of it. Made by `@tool` or `FunctionTool.of`."""

    function: Callable[..., Any]
    schema: ToolSchema
    signature: Signature
    needs_approval: bool = False

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        needs_approval: bool = False,
        effect: ToolEffect | str = ToolEffect.ONCE,
        timeout: float | None = None,
        retries: int = 0,
        max_concurrency: int | None = None,
    ) -> "FunctionTool":
        """A tool from any callable; the options are those of `tool`."""
        name = name or _name_of(function)
        _check_options(name, function, timeout, retries, max_concurrency)
        effect = _effect_of(effect, name)
        if retries and effect is ToolEffect.ONCE:
            raise ConfigurationError(
                f"tool {name!r} has retries={retries}, but its effect is 'once': it may never be run again",
                hint="declare effect='idempotent' or effect='pure' if running it twice does no harm",
            )
        signature = read_signature(function)
        schema = ToolSchema(
            name=name,
            description=signature.description,
            parameters=signature.parameters,
            effect=effect,
            timeout_s=timeout,
            retries=retries,
            max_concurrency=max_concurrency,
        )
        return cls(function=function, schema=schema, signature=signature, needs_approval=needs_approval)

    @property
    def is_async(self) -> bool:
        """Whether a call gives a coroutine."""
        function = inspect.unwrap(self.function)
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - a callable object may have an async __call__
        )


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    needs_approval: bool = False,
    effect: ToolEffect | str = ToolEffect.ONCE,
    timeout: float | None = None,
    retries: int = 0,
    max_concurrency: int | None = None,
) -> Callable[[F], F]: ...
def tool(function: F | None = None, /, **options: Any) -> F | Callable[[F], F]:
    """Make a function available to models; bare, or with options. The function itself is unchanged.

    `name` is what models call it (the function's name), `effect` what running it twice would mean
    (`once`: never run it again when it is not known whether it ran), `timeout` is in seconds,
    `retries` how often a failure may be tried again (not with `once`), `max_concurrency` how many
    calls may run at the same time. Raises `ConfigurationError` for what cannot be a tool.
    """

    def mark(function: F) -> F:
        made = FunctionTool.of(function, **options)
        try:
            setattr(function, _ATTRIBUTE, made)
        except AttributeError as error:
            raise ConfigurationError(
                f"{made.schema.name!r} cannot be decorated",
                hint="use FunctionTool.of(...) for bound methods and other callables",
            ) from error
        return function

    return mark if function is None else mark(function)


def tool_of(value: object) -> FunctionTool | None:
    """The `FunctionTool` that a decorated function carries, or None."""
    if isinstance(value, FunctionTool):
        return value
    found = getattr(value, _ATTRIBUTE, None)
    return found if isinstance(found, FunctionTool) else None


class FunctionToolExecutor:
    """Runs Python functions as tools. Undecorated callables are taken with the default options."""

    validates_arguments = True

    def __init__(
        self, tools: Sequence[Callable[..., Any] | FunctionTool], *, max_threads: int = _MOST_THREADS
    ) -> None:
        self._tools: dict[str, FunctionTool] = {}
        for given in tools:
            self._register(tool_of(given) or FunctionTool.of(_callable(given)))
        self._validators = {name: ArgumentsValidator(made.schema) for name, made in self._tools.items()}
        self._slots = {
            name: asyncio.Semaphore(made.schema.max_concurrency)
            for name, made in self._tools.items()
            if made.schema.max_concurrency is not None
        }
        self._threads = asyncio.Semaphore(max_threads)

    def _register(self, made: FunctionTool) -> None:
        name = made.schema.name
        if made.needs_approval:
            raise ConfigurationError(
                f"tool {name!r} has needs_approval=True, and approvals are not available in this version",
                hint="leave the tool out: it would run without anybody being asked",
            )
        if name in self._tools:
            first, second = (_place_of(each.function) for each in (self._tools[name], made))
            raise ConfigurationError(f"two tools are named {name!r}: {first} and {second}")
        self._tools[name] = made

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        """The tools on offer, the same for every request."""
        return tuple(made.schema for made in self._tools.values())

    async def tools(self, ctx: RequestContext) -> list[ToolSchema]:  # noqa: ARG002 - the protocol's signature
        """The tools on offer."""
        return list(self.schemas)

    async def execute(self, tool_name: str, tool_call_id: str, arguments: Any, ctx: RequestContext) -> Any:
        """Check and convert the arguments, call the function, and give back its result as JSON value.

        Raises `ToolError`: not found, invalid arguments (with the JSON path), timeout, or execution
        error for whatever else the function raised.
        """
        made = self._tools.get(tool_name)
        if made is None:
            raise ToolNotFoundError(tool_name)
        self._validators[tool_name].check(arguments)
        keywords = made.signature.convert(arguments)
        context = ToolContext(
            request=ctx, idempotency_key=tool_call_id, attempt=current_attempt.get(), tool_name=tool_name
        )
        positional = (context,) if made.signature.takes_context else ()
        try:
            result = await self._call(made, lambda: made.function(*positional, **keywords))
        except ToolError:
            raise
        except Exception as error:
            log.warning("tool_failed", tool=tool_name, tool_call_id=tool_call_id, exc_info=True)
            raise ToolExecutionError(_message_of(error)) from error
        return _json_value(result)

    async def _call(self, made: FunctionTool, call: Callable[[], Any]) -> Any:
        timeout_s = made.schema.timeout_s
        slots = self._slots_of(made)
        await _take(slots, made.schema)
        if not made.is_async:
            # A thread that nobody waits for any more still counts as running: it gives its slots back itself.
            return await _within(timeout_s, made.schema.name, _threaded(call, lambda: _release(slots)))
        try:
            return await _within(timeout_s, made.schema.name, call())
        finally:
            _release(slots)

    def _slots_of(self, made: FunctionTool) -> list[asyncio.Semaphore]:
        slots = [self._slots[made.schema.name]] if made.schema.name in self._slots else []
        return slots if made.is_async else [*slots, self._threads]


async def _threaded(call: Callable[[], Any], ended: Callable[[], None]) -> Any:
    result = await run_in_thread(call, ended=ended)
    return await result if inspect.isawaitable(result) else result


async def _within(timeout_s: float | None, name: str, work: Awaitable[Any]) -> Any:
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            return await work
    except TimeoutError as error:
        if not deadline.expired():
            raise  # the function's own
        raise ToolTimeoutError(
            f"{name} gave no result within {timeout_s:g} s; whether it acted is not known"
        ) from error


async def _take(slots: list[asyncio.Semaphore], schema: ToolSchema) -> None:
    """All slots or none. Waiting is bounded by the tool's timeout, which begins anew once it runs."""
    taken: list[asyncio.Semaphore] = []
    try:
        async with asyncio.timeout(schema.timeout_s):
            for slot in slots:
                await slot.acquire()
                taken.append(slot)
    except TimeoutError as error:
        _release(taken)
        raise ToolExecutionError(
            f"{schema.name} was not started: too many calls were running for {schema.timeout_s:g} s"
        ) from error
    except BaseException:
        _release(taken)
        raise


def _release(slots: list[asyncio.Semaphore]) -> None:
    for slot in slots:
        slot.release()


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _check_options(
    name: str, function: Callable[..., Any], timeout: float | None, retries: int, max_concurrency: int | None
) -> None:
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{name!r} cannot be the name of a tool: 1 to 64 letters, digits, '_' or '-'",
            hint="give one with @tool(name=...)",
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"tool {name!r} is a generator: a tool gives one result")
    if timeout is not None and timeout <= 0:
        raise ConfigurationError(f"tool {name!r}: timeout must be more than 0 seconds")
    if retries < 0:
        raise ConfigurationError(f"tool {name!r}: retries must be 0 or more")
    if max_concurrency is not None and max_concurrency < 1:
        raise ConfigurationError(f"tool {name!r}: max_concurrency must be 1 or more")


def _effect_of(effect: ToolEffect | str, name: str) -> ToolEffect:
    try:
        return ToolEffect(effect)
    except ValueError as error:
        known = ", ".join(ToolEffect)
        raise ConfigurationError(f"tool {name!r}: effect must be one of {known}, not {effect!r}") from error


def _callable(given: object) -> Callable[..., Any]:
    if not callable(given):
        raise ConfigurationError(f"{given!r} is not a tool: it cannot be called")
    return given


def _place_of(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)


def _message_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _json_value(result: Any) -> Any:
    try:
        value = msgspec.to_builtins(result, str_keys=True)
        msgspec.json.encode(value)  # what is too large or not Unicode is only found here
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ToolExecutionError(
            f"the result, a {type(result).__name__}, cannot be written as JSON: {error}"
        ) from error
    return value
