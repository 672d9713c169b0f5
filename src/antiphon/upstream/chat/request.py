"""An inference request as the body and the headers of a chat-completions request.

Pure. Responses parameters are renamed, those that only steer the Responses server are left out, and
names that are known to neither side pass through (`top_k`, `seed`, `chat_template_kwargs`, …).
"""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from antiphon.domain.inference import InferenceRequest
from antiphon.upstream.chat.messages import DeveloperRole, chat_messages
from antiphon.upstream.protocol import UpstreamTarget

JsonObject = dict[str, Any]

# Parameters of the Responses server itself; a model server would refuse or misread them.
_NOT_FOR_MODELS = frozenset(
    {
        "background",
        "context_management",
        "conversation",
        "include",
        "input",
        "instructions",
        "max_tool_calls",
        "messages",
        "metadata",
        "model",
        "moderation",
        "n",
        "previous_response_id",
        "prompt",
        "store",
        "stream",
        "stream_options",
        "tools",
        "truncation",
    }
)
_OPENAI_ONLY = frozenset(
    {
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
    }
)
_CUSTOM_PARAMETERS = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}

_encode = msgspec.json.Encoder().encode


def is_openai(target: UpstreamTarget) -> bool:
    """Whether the target is OpenAI's own server, which knows more and insists on newer names."""
    host = urlsplit(target.endpoint).hostname or ""
    return host == "openai.com" or host.endswith(".openai.com")


def chat_headers(target: UpstreamTarget, request: InferenceRequest) -> dict[str, str]:
    """The headers of the request. Compression is declined: it would hold back a stream's pieces."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream" if request.stream else "application/json",
        **target_headers(target),
    }
    if request.idempotency_key:
        headers["Idempotency-Key"] = request.idempotency_key
    return headers


def target_headers(target: UpstreamTarget) -> dict[str, str]:
    """What every request to this target carries."""
    headers = {"Accept-Encoding": "identity"}
    if target.api_key and target.api_key.strip():
        headers["Authorization"] = f"Bearer {target.api_key.strip()}"
    return headers


def chat_body(
    request: InferenceRequest, *, openai: bool = False, developer_role: DeveloperRole = "system"
) -> bytes:
    """The encoded body. `openai` says that the server is OpenAI's own."""
    body: JsonObject = {
        "model": request.model,
        "messages": chat_messages(
            request.input, instructions=request.instructions, developer_role=developer_role
        ),
        "stream": request.stream,
    }
    if request.stream:
        body["stream_options"] = {"include_usage": True}
    params = dict(request.params)
    body.update(_tooling(request.tools, params))
    for name, value in params.items():
        if value is None or name in _NOT_FOR_MODELS or (name in _OPENAI_ONLY and not openai):
            continue
        translate = _TRANSLATED.get(name)
        body.update(translate(value) if translate else {name: value})
    if openai and "max_tokens" in body:
        body["max_completion_tokens"] = body.pop("max_tokens")
    return _encode(body)


def _tooling(tools: list[JsonObject], params: JsonObject) -> JsonObject:
    """`tools`, `tool_choice` and `parallel_tool_calls`; the latter two mean nothing without the first."""
    choice = params.pop("tool_choice", None)
    parallel = params.pop("parallel_tool_calls", None)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = {tool.get("name") for tool in choice.get("tools") or () if isinstance(tool, dict)}
        tools = [tool for tool in tools if tool.get("name") in allowed]
        choice = choice.get("mode", "auto")
    chat_tools = [chat_tool for tool in tools if (chat_tool := _chat_tool(tool)) is not None]
    if not chat_tools:
        return {}
    tooling: JsonObject = {"tools": chat_tools}
    if (chat_choice := _chat_choice(choice, chat_tools)) is not None:
        tooling["tool_choice"] = chat_choice
    if parallel is not None:
        tooling["parallel_tool_calls"] = parallel
    return tooling


def _chat_tool(tool: JsonObject) -> JsonObject | None:
    match tool.get("type", "function"):
        case "function":
            parameters = tool.get("parameters") or {"type": "object", "properties": {}}
        case "custom":
            parameters = {
                "type": "object",
                "properties": {"input": {"type": "string"}},
                "required": ["input"],
            }
        case _:
            return None
    function: JsonObject = {"name": tool["name"], "parameters": parameters}
    if tool.get("description"):
        function["description"] = tool["description"]
    if tool.get("strict"):
        function["strict"] = True
    return {"type": "function", "function": function}


def _chat_choice(choice: Any, chat_tools: list[JsonObject]) -> str | JsonObject | None:
    match choice:
        case str():
            return choice
        case {"name": str() as name} if any(tool["function"]["name"] == name for tool in chat_tools):
            return {"type": "function", "function": {"name": name}}
        case _:
            return None


def _response_format(text: Any) -> JsonObject:
    if not isinstance(text, dict):
        return {}
    chat: JsonObject = {}
    match text.get("format"):
        case {"type": "json_schema", **rest}:
            fields = {
                name: rest[name]
                for name in ("name", "description", "schema", "strict")
                if rest.get(name) is not None
            }
            chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", **fields}}
        case {"type": "json_object"}:
            chat["response_format"] = {"type": "json_object"}
    if text.get("verbosity"):
        chat["verbosity"] = text["verbosity"]
    return chat


def _reasoning(reasoning: Any) -> JsonObject:
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    return {"reasoning_effort": effort} if effort else {}


def _top_logprobs(count: Any) -> JsonObject:
    return {"logprobs": True, "top_logprobs": count} if count else {}


_TRANSLATED: dict[str, Callable[[Any], JsonObject]] = {
    "max_output_tokens": lambda count: {"max_tokens": count},
    "text": _response_format,
    "reasoning": _reasoning,
    "top_logprobs": _top_logprobs,
}
