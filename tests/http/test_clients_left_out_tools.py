"""Clients that bring tools of kinds we do not have: the request goes on without them, and says so."""

import pytest

from antiphon.server import ServerOptions
from antiphon.testing.scripts import ScriptedCall, Turn, answer_script, turns_script
from serving import serving, text_of

pytestmark = pytest.mark.anyio

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
WEB_SEARCH = {"type": "web_search"}
CODE = {"type": "code_interpreter", "container": {"type": "auto"}}
REMOTE_MCP = {
    "type": "mcp",
    "server_label": "wiki",
    "server_url": "https://wiki.example/mcp",
    "require_approval": "never",
}
CUSTOM = {"type": "custom", "name": "run_code", "description": "Runs code.", "format": {"type": "text"}}

# What Codex CLI 0.169 sends, shortened.
CODEX = {
    "instructions": "You are a coding agent.",
    "tools": [
        {"type": "function", "name": "exec_command", "parameters": {"type": "object"}, "strict": False},
        {
            "type": "namespace",
            "name": "multi_agent_v1",
            "description": "Tools for agents.",
            "tools": [{"type": "function", "name": "spawn_agent", "parameters": {"type": "object"}}],
        },
        {"type": "web_search", "external_web_access": True},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a1fcfa-fdca-7001-87a5-c5ef361e62d1",
    "client_metadata": {"x-codex-installation-id": "ab894283"},
}


async def test_tools_that_we_do_not_have_are_named_and_left_out():
    """Hosted, custom and remote MCP tools reach no model; each is named in `warnings`."""
    async with serving(answer_script("Fine.", varied=False)) as s:
        made = await s.create({"input": "hi", "tools": [WEB_SEARCH, CODE, REMOTE_MCP, CUSTOM, WEATHER]})
    (request,) = s.upstream.requests
    assert [tool["function"]["name"] for tool in request.body["tools"]] == ["get_weather"]
    kinds = ("web_search", "code_interpreter", "mcp", "custom")
    assert made["warnings"] == [f"ignored: tools: {kind}" for kind in kinds]


@pytest.mark.parametrize(
    ("tool", "choice"),
    [
        (CODE, {"type": "code_interpreter"}),
        (CUSTOM, {"type": "custom", "name": "run_code"}),
        (REMOTE_MCP, {"type": "mcp", "server_label": "wiki"}),
        (REMOTE_MCP, {"type": "mcp", "server_label": "wiki", "name": "search"}),
        (WEB_SEARCH, {"type": "allowed_tools", "mode": "required", "tools": [WEB_SEARCH]}),
    ],
)
async def test_forcing_a_left_out_tool_is_refused(tool, choice):
    """The AI SDK fails on an answer without the tool it forced: better a 400 that says why."""
    async with serving(answer_script("Fine.", varied=False)) as s:
        body = {"model": "fake", "input": "hi", "tools": [tool, WEATHER], "tool_choice": choice}
        answer = await s.post(body)
        assert not s.upstream.requests
    assert answer.status == 400
    assert answer.error["param"] == "tool_choice"


async def test_allowed_tools_keep_what_is_there():
    """A list that names a function and a hosted tool allows the function; one of hosted tools alone, none."""
    script = turns_script([Turn(text="Fine.", calls=(ScriptedCall("get_weather", {"city": "Oslo"}),))])
    choice = {"type": "allowed_tools", "mode": "auto"}
    by_name = {"type": "function", "name": "get_weather"}
    async with serving(script) as s:
        body = {"input": "hi", "tools": [WEB_SEARCH, WEATHER]}
        both = await s.create({**body, "tool_choice": {**choice, "tools": [WEB_SEARCH, by_name]}})
        hosted = await s.create({**body, "tool_choice": {**choice, "tools": [WEB_SEARCH]}})
    assert [item["type"] for item in both["output"]] == ["message", "function_call"]
    assert both["tool_choice"] == {**choice, "tools": [by_name]}
    assert [item["type"] for item in hosted["output"]] == ["message"]
    for made in (both, hosted):
        assert "ignored: tool_choice: web_search" in made["warnings"]


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "nowhere"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "nowhere"}]},
    ],
)
async def test_a_choice_of_a_function_that_is_not_there_is_refused(choice):
    """Left-out tools excuse no wrong name."""
    async with serving() as s:
        body = {"model": "fake", "input": "hi", "tools": [WEB_SEARCH, WEATHER], "tool_choice": choice}
        answer = await s.post(body)
    assert answer.status == 400
    assert answer.error["param"] == "tool_choice"


async def test_codex_runs_its_shell():
    """Two turns of Codex CLI: it replays items of ours with our ids, `encrypted_content: null` included."""
    calls = (ScriptedCall("exec_command", {"cmd": "ls"}),)
    script = turns_script([Turn(text="Let me look.", reasoning="Hm.", calls=calls), Turn(text="Two files.")])
    asked = {"type": "message", "id": "msg_01a1fcfa-fe36", "role": "user"}
    asked["content"] = [{"type": "input_text", "text": "What is here?"}]
    async with serving(script) as s:
        first = (await s.stream({**CODEX, "input": [asked]}))[-1]["response"]
        reasoning, said, call = first["output"]
        told = {"type": "function_call_output", "id": "fco_01a1fcfa-ff3a", "call_id": call["call_id"]}
        replayed = [asked, {**reasoning, "encrypted_content": None}, said, call, {**told, "output": "a b"}]
        second = (await s.stream({**CODEX, "input": replayed}))[-1]["response"]
        missing = await s.get(f"/v1/responses/{first['id']}")
    assert text_of(second).endswith("Two files.")
    assert missing.status == 404, "store: false keeps nothing"
    assert "ignored: tools: namespace" in first["warnings"]
    assert s.upstream.requests[1].extends(s.upstream.requests[0])
    answer, result = s.upstream.requests[1].body["messages"][-2:]
    assert answer["content"].endswith("Let me look.")
    assert answer["tool_calls"][0]["id"] == result["tool_call_id"]
    assert result["content"] == "a b"


@pytest.mark.parametrize("tool", [WEB_SEARCH, CODE, REMOTE_MCP, CUSTOM], ids=lambda tool: tool["type"])
async def test_the_strict_refuse_what_they_cannot_offer(tool):
    """With `server.unknown_tools: reject` such a request is a 400 that names the place; others pass."""
    async with serving(answer_script("Hello."), options=ServerOptions(unknown_tools="reject")) as s:
        refused = await s.post({"model": "fake", "input": "hi", "tools": [WEATHER, tool]})
        assert (refused.status, refused.error["param"]) == (400, "tools[1].type")
        assert refused.error["code"] == "unsupported_tool"
        ours = {"type": "mcp", "server_label": "antiphon"}
        assert (await s.post({"model": "fake", "input": "hi", "tools": [WEATHER, ours]})).status == 200
