"""Bodies and headers of chat-completions requests."""

import json
from typing import Any

import pytest

from antiphon.domain.inference import InferenceRequest
from antiphon.upstream.chat.request import chat_body, chat_headers, is_openai
from antiphon.upstream.protocol import UpstreamTarget

TOOLS = [
    {
        "type": "function",
        "name": name,
        "description": "does it",
        "parameters": {"type": "object", "properties": {}},
        "strict": name == "g",
    }
    for name in ("f", "g")
]


def body_of(*, openai: bool = False, **fields: Any) -> dict[str, Any]:
    fields = {"model": "m", "input": [{"role": "user", "content": "hi"}], **fields}
    return json.loads(chat_body(InferenceRequest(**fields), openai=openai))


def with_params(openai: bool = False, **params: Any) -> dict[str, Any]:
    """What these parameters add to a body."""
    plain = body_of(tools=TOOLS)
    return {k: v for k, v in body_of(openai=openai, tools=TOOLS, params=params).items() if plain.get(k) != v}


def test_the_plain_body() -> None:
    """Model, messages, and whether to stream: nothing else."""
    assert body_of(instructions="be good") == {
        "model": "m",
        "messages": [{"role": "system", "content": "be good"}, {"role": "user", "content": "hi"}],
        "stream": False,
    }


def test_streaming_asks_for_usage() -> None:
    """Usage comes in a stream only when asked for."""
    assert body_of(stream=True)["stream_options"] == {"include_usage": True}


def test_tools() -> None:
    """Function tools are wrapped; custom tools become functions with one input; others are left out."""
    tools = [*TOOLS, {"type": "custom", "name": "patch"}, {"type": "web_search"}]
    functions = [tool["function"] for tool in body_of(tools=tools)["tools"]]
    assert functions == [
        {"name": "f", "parameters": {"type": "object", "properties": {}}, "description": "does it"},
        {
            "name": "g",
            "parameters": {"type": "object", "properties": {}},
            "description": "does it",
            "strict": True,
        },
        {
            "name": "patch",
            "parameters": {
                "type": "object",
                "properties": {"input": {"type": "string"}},
                "required": ["input"],
            },
        },
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", {"tool_choice": "auto"}),
        ("none", {"tool_choice": "none"}),
        ("required", {"tool_choice": "required"}),
        (None, {}),
        ({"type": "function", "name": "g"}, {"tool_choice": {"type": "function", "function": {"name": "g"}}}),
        ({"type": "function", "name": "unknown"}, {}),
        ({"type": "web_search"}, {}),
    ],
)
def test_tool_choice(choice: Any, expected: dict[str, Any]) -> None:
    """The chat form of each choice; a choice of what the model does not have is no choice."""
    assert with_params(tool_choice=choice) == expected


def test_allowed_tools() -> None:
    """Tools that are not allowed are not offered, and the mode is the choice."""
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
    body = body_of(tools=TOOLS, params={"tool_choice": allowed})
    assert [tool["function"]["name"] for tool in body["tools"]] == ["g"]
    assert body["tool_choice"] == "required"


def test_without_tools_nothing_is_said_of_them() -> None:
    """Servers refuse a choice among no tools."""
    body = body_of(params={"tool_choice": "auto", "parallel_tool_calls": False})
    assert body.keys() == {"model", "messages", "stream"}


def test_parallel_calls() -> None:
    """Passed on, false too."""
    assert with_params(parallel_tool_calls=False) == {"parallel_tool_calls": False}


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"temperature": 0, "top_p": 0.5}, {"temperature": 0, "top_p": 0.5}),
        (
            {"presence_penalty": 1, "frequency_penalty": 0.1},
            {"presence_penalty": 1, "frequency_penalty": 0.1},
        ),
        ({"max_output_tokens": 16}, {"max_tokens": 16}),
        ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"top_logprobs": 0}, {}),
        ({"user": "u"}, {"user": "u"}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"reasoning": {"effort": None}}, {}),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {"verbosity": "low"}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {
                "text": {
                    "format": {
                        "type": "json_schema",
                        "name": "n",
                        "schema": SCHEMA,
                        "strict": True,
                        "description": None,
                    }
                }
            },
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
        ),
        (
            {"top_k": 5, "chat_template_kwargs": {"x": 1}, "seed": 0},
            {"top_k": 5, "chat_template_kwargs": {"x": 1}, "seed": 0},
        ),
        ({"temperature": None, "text": None, "reasoning": None, "made_up": None}, {}),
        ({"service_tier": "auto", "prompt_cache_key": "k", "safety_identifier": "s"}, {}),
        (
            {"store": True, "metadata": {"a": "b"}, "include": [], "truncation": "auto", "background": False},
            {},
        ),
        ({"model": "other", "messages": [], "stream": True, "n": 2, "max_tool_calls": 1}, {}),
    ],
)
def test_parameters(params: dict[str, Any], expected: dict[str, Any]) -> None:
    """Renamed, passed through, or not for a model server."""
    assert with_params(**params) == expected


def test_openai_gets_its_own_names() -> None:
    """Its newer name for the limit, and the parameters that only it knows."""
    params = {
        "max_output_tokens": 16,
        "service_tier": "flex",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
    }
    assert with_params(openai=True, **params) == {
        "max_completion_tokens": 16,
        "service_tier": "flex",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
    }


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("https://api.openai.com", True),
        ("https://eu.api.openai.com:443/x", True),
        ("https://openai.com", True),
        ("https://notopenai.com", False),
        ("https://openai.com.evil.example", False),
        ("http://127.0.0.1:8000", False),
    ],
)
def test_who_is_openai(endpoint: str, expected: bool) -> None:
    """By the host's name, as a whole."""
    assert is_openai(UpstreamTarget(endpoint)) is expected


def test_the_callers_parameters_stay_as_they_are() -> None:
    """Building a body twice from one request gives the same bytes."""
    request = InferenceRequest(model="m", input=[], tools=TOOLS, params={"tool_choice": "auto"})
    assert chat_body(request) == chat_body(request)
    assert request.params == {"tool_choice": "auto"}


def test_headers() -> None:
    """A key is sent when there is one, without the blanks that files leave around it."""
    request = InferenceRequest(model="m", input=[])
    assert chat_headers(UpstreamTarget("http://x", api_key=" k\n"), request)["Authorization"] == "Bearer k"
    assert "Authorization" not in chat_headers(UpstreamTarget("http://x", api_key=" "), request)
    assert "Idempotency-Key" not in chat_headers(UpstreamTarget("http://x"), request)
