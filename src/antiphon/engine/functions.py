"""The composable step functions: what the loop itself is made of, for those who write their own.

    conversation = await rehydrate_conversation(previous_response_id, ctx)
    result = await call_inference(conversation, request, ctx)
    outputs = await dispatch_tools(result.tool_calls, ctx)
    response = assemble_response(request_id, items, model, metadata)
    await persist_response(response, None, previous_response_id, ctx)

Called like this they work and are **not durable**: no claim is held, and nobody resumes a program that
dies in the middle. The engine calls the same functions under a claim.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from antiphon.core.assembly import Answer, Calling
from antiphon.core.narration import Narrator
from antiphon.domain.errors import InvalidRequestError
from antiphon.domain.ids import attempt_stem
from antiphon.domain.inference import Conversation, InferenceEvent, InferenceRequest, InferenceResult
from antiphon.domain.responses import Response
from antiphon.domain.tools import ToolCall, ToolEffect, ToolKind, ToolResult, ToolSchema
from antiphon.domain.usage import Usage
from antiphon.engine.context import ExecutionContext
from antiphon.tools.dispatch import dispatch_call


async def rehydrate_conversation(previous_response_id: str | None, ctx: ExecutionContext) -> Conversation:
    """The history before a turn, in order, and the metadata of the turn before.

    Raises `InvalidRequestError` for an id that the store does not know. Not durable by itself: it only reads.
    """
    if previous_response_id is None:
        return Conversation()
    last = await ctx.store.get_response(previous_response_id)
    if last is None:
        raise InvalidRequestError(
            f"Previous response with id '{previous_response_id}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    history = await ctx.store.rehydrate(previous_response_id)
    return Conversation(previous_response_id, tuple(history), last.metadata)


class Inference:
    """One model call: await it for the `InferenceResult`, or iterate it for the `InferenceEvent`s.

    There is one path: awaiting drains the same iterator.
    """

    def __init__(self, request: InferenceRequest, ctx: ExecutionContext) -> None:
        self._request = request
        self._ctx = ctx

    def __aiter__(self) -> AsyncIterator[InferenceEvent]:
        return self._ctx.inference.call(self._request)

    def __await__(self) -> Any:
        return self._collect().__await__()

    async def _collect(self) -> InferenceResult:
        schemas = {schema.name: schema for schema in await self._ctx.tools.tools(self._ctx.request_context)}
        stem = attempt_stem(self._ctx.new_id("step"), 0)
        answer = answer_of(self._request, schemas, Narrator(None), stem)
        async for event in self:
            answer.feed(event)
        return result_of(answer.close())


def call_inference(conversation: Conversation, request: InferenceRequest, ctx: ExecutionContext) -> Inference:
    """Ask the model: the conversation's history, then the request's own input.

    `await` gives an `InferenceResult`, `async for` the `InferenceEvent`s; raises `InferenceError`. Not
    durable: an answer that nobody wrote down is asked for again.
    """
    history = [item.data for item in conversation.history]
    return Inference(msgspec.structs.replace(request, input=history + list(request.input)), ctx)


async def dispatch_tools(tool_calls: Sequence[ToolCall], ctx: ExecutionContext) -> list[ToolResult]:
    """Run calls at the same time; results in the order of the calls.

    A tool's failure is a result with `failed`. The idempotency key of a call is its item id. Not durable:
    after a crash nobody knows which of them ran.
    """
    limit = asyncio.Semaphore(ctx.config.parallel_tools)

    async def one(call: ToolCall) -> ToolResult:
        async with limit:
            return await dispatch_call(ctx.tools, call, ctx.request_context, key=call.id)

    return list(await asyncio.gather(*(one(call) for call in tool_calls)))


def assemble_response(
    request_id: str,
    output: Sequence[Mapping[str, Any]],
    model: str,
    metadata: Mapping[str, Any] | None = None,
) -> Response:
    """A completed response with these output items; ids stay as they are, times are now unless given.

    `metadata` may hold, besides the response's own metadata pairs under `metadata`, any wire field by its
    name (`usage`, `created_at`, `instructions`, `previous_response_id`, `store`, …).
    """
    given = dict(metadata or {})
    fields = {key: given.pop(key) for key in list(given) if key in _RESPONSE_FIELDS}
    pairs = {key: str(value) for key, value in given.items()}
    if isinstance(fields.get("usage"), dict):
        fields["usage"] = msgspec.convert(fields["usage"], Usage)
    fields.setdefault("metadata", pairs)
    now = int(time.time())
    fields.setdefault("created_at", now)
    if fields.get("status", "completed") == "completed":
        fields.setdefault("completed_at", now)
    response_id = request_id if request_id.startswith("resp_") else "resp_" + request_id.removeprefix("run_")
    return Response(id=response_id, model=model, output=[dict(item) for item in output], **fields)


_RESPONSE_FIELDS = frozenset(Response.__struct_fields__) - {"id", "model", "output", "extra"}


async def persist_response(
    response: Response,
    conversation_id: str | None,
    previous_response_id: str | None,
    ctx: ExecutionContext,
) -> None:
    """Write an ended response, so that a later turn can name it. Does nothing when `store` is false."""
    if response.store:
        await ctx.store.persist(
            response, conversation_id=conversation_id, previous_response_id=previous_response_id
        )


def calling_of(request: InferenceRequest, schemas: Mapping[str, ToolSchema]) -> Calling:
    """Which calls this request allows, and whose they are.

    A name that the client declared is the client's; every other name is ours as soon as we have tools, so
    that the model is told of a tool that it made up. Without tools of ours all calls are the client's.
    """
    offered = {tool["name"] for tool in request.tools if tool.get("type") == "function"}
    clients = offered - schemas.keys()
    choice = request.params.get("tool_choice")
    most = 0 if choice == "none" else (1 if request.params.get("parallel_tool_calls") is False else None)
    allowed = None
    if isinstance(choice, dict):
        if choice.get("type") == "allowed_tools":
            allowed = frozenset(str(tool.get("name")) for tool in choice["tools"])
        elif choice.get("type") in {"function", "mcp"} and choice.get("name"):
            allowed = frozenset({str(choice["name"])})

    def label_of(name: str) -> str | None:
        if name in schemas:
            return schemas[name].server_label
        return "antiphon" if schemas and name not in clients else None

    def effect_of(name: str) -> str:
        schema = schemas.get(name)
        if schema is None:
            return ToolEffect.PURE  # nothing is run
        # An agent resumes its own scope: going on with it repeats nothing.
        return ToolEffect.IDEMPOTENT if schema.kind is ToolKind.AGENT else schema.effect

    return Calling(label_of=label_of, effect_of=effect_of, allowed=allowed, most=most)


def answer_of(
    request: InferenceRequest, schemas: Mapping[str, ToolSchema], narrator: Narrator, stem: str
) -> Answer:
    """An empty answer to this request, ready to be fed."""
    return Answer(narrator, stem, calling=calling_of(request, schemas), deltas=request.stream)


def result_of(payload: Mapping[str, Any]) -> InferenceResult:
    """The payload of an answer as a value; every call as a plain `function_call` item."""
    ours = {"server_label", "effect", "output_index"}
    output = [{key: value for key, value in item.items() if key not in ours} for item in payload["output"]]
    calls = [
        ToolCall(item["id"], item["call_id"], item["name"], item["arguments"])
        for item in output
        if item["type"] == "function_call"
    ]
    return InferenceResult(
        output=output,
        tool_calls=calls,
        usage=msgspec.convert(payload["usage"], Usage) if payload["usage"] else None,
        finish_reason=payload["finish_reason"],
        model=payload["model"],
    )
