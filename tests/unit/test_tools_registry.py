"""Several executors as one, and what the model reads of their results."""

import pytest

from antiphon.domain.errors import ConfigurationError, ToolInvalidArgumentsError, ToolNotFoundError
from antiphon.domain.tools import RequestContext, ToolCall, ToolResult, ToolSchema
from antiphon.tools.dispatch import parse_arguments, text_of
from antiphon.tools.function import FunctionToolExecutor
from antiphon.tools.protocol import NoOpToolExecutor
from antiphon.tools.registry import ToolRegistry
from antiphon.tools.validation import ArgumentsValidator

pytestmark = pytest.mark.anyio

CTX = RequestContext()


class Remote:
    """An executor that learns its tools when asked and checks nothing itself."""

    def __init__(self, *names, fails=None):
        self.names = names
        self.fails = fails
        self.calls = []

    async def tools(self, ctx):
        parameters = {"type": "object", "properties": {"n": {"type": "integer"}}}
        return [ToolSchema(name=name, parameters=parameters) for name in self.names]

    async def execute(self, tool_name, tool_call_id, arguments, ctx):
        self.calls.append((tool_name, tool_call_id, arguments))
        if self.fails:
            raise self.fails
        return {"ok": True}


def echo(text: str) -> str:
    return text


def total(numbers: list[int]) -> dict[str, int]:
    return {"total": sum(numbers)}


def call(name, arguments):
    return ToolCall("fc_1", "call_1", name, arguments)


@pytest.fixture
def registry():
    return ToolRegistry([FunctionToolExecutor([echo, total]), Remote("far"), NoOpToolExecutor()])


async def test_tools_of_all_executors_in_order(registry):
    """A registry offers what its executors offer."""
    assert [schema.name for schema in await registry.tools(CTX)] == ["echo", "total", "far"]


async def test_has_tool(registry):
    """Functions are known at once, remote tools once they were asked for."""
    assert registry.has_tool("echo")
    assert not registry.has_tool("far")
    await registry.tools(CTX)
    assert registry.has_tool("far")
    assert not registry.has_tool("nope")


async def test_execute_finds_tools_that_were_not_yet_asked_for(registry):
    """The first call may come before the first question."""
    assert await registry.execute("far", "c", {"n": 1}, CTX) == {"ok": True}
    with pytest.raises(ToolNotFoundError):
        await registry.execute("nope", "c", {}, CTX)


async def test_registries_nest(registry):
    """A registry is an executor like any other."""
    outer = ToolRegistry([registry])
    assert outer.has_tool("echo")
    assert await outer.execute("echo", "c", {"text": "hi"}, CTX) == "hi"
    assert await outer.execute("far", "c", {"n": 1}, CTX) == {"ok": True}


async def test_arguments_are_checked_for_executors_that_do_not(registry):
    """A remote tool never sees arguments that do not fit its schema."""
    remote = Remote("far")
    with pytest.raises(ToolInvalidArgumentsError, match=r"\$\.n: "):
        await ToolRegistry([remote]).execute("far", "c", {"n": "x"}, CTX)
    assert remote.calls == []


async def test_duplicate_names_name_both():
    """Two executors with one name: refused at once when known, when asked otherwise."""
    with pytest.raises(
        ConfigurationError, match=r"'echo': one of FunctionToolExecutor .* one of FunctionToolExecutor"
    ):
        ToolRegistry([FunctionToolExecutor([echo]), FunctionToolExecutor([echo])])
    registry = ToolRegistry([FunctionToolExecutor([echo]), Remote("echo")])
    with pytest.raises(ConfigurationError, match=r"FunctionToolExecutor .* Remote"):
        await registry.tools(CTX)


async def test_dispatch_text_and_json(registry):
    """Text is given as it is, other results as compact JSON."""
    assert await registry.dispatch(call("echo", '{"text": "hi\\n"}')) == ToolResult("call_1", "hi\n")
    assert await registry.dispatch(call("total", '{"numbers": [1, 2]}')) == ToolResult(
        "call_1", '{"total":3}'
    )


async def test_dispatch_failures_are_results(registry):
    """The model reads what went wrong; nothing is raised."""
    unknown = await registry.dispatch(call("nope", ""))
    assert unknown == ToolResult("call_1", "Tool not found: nope", failed=True, error_code="tool_not_found")
    malformed = await registry.dispatch(call("echo", '{"text": '))
    assert malformed.failed
    assert malformed.output.startswith("Invalid arguments: $: not valid JSON: Input data was truncated")
    missing = await registry.dispatch(call("echo", ""))
    assert missing.output == 'Invalid arguments: $: "text" is a required property'


async def test_unforeseen_errors_of_an_executor_are_tool_errors():
    """An executor that breaks the contract does not break the loop."""
    registry = ToolRegistry([Remote("far", fails=ConnectionResetError("gone"))])
    result = await registry.dispatch(call("far", "{}"))
    said = "Tool execution error: ConnectionResetError: gone"
    assert result == ToolResult("call_1", said, failed=True, error_code="tool_execution_error")


@pytest.mark.parametrize(
    ("text", "value"), [("", {}), ("  \n", {}), ("{}", {}), ('{"a": [1]}', {"a": [1]})], ids=repr
)
def test_arguments_that_parse(text, value):
    """Nothing at all means no arguments."""
    assert parse_arguments(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{,}", r"byte 1"),
        ("[1]", "expected an object, got an array"),
        ('"{}"', "expected an object, got a string"),
        ("null", "got null"),
        ("true", "got a boolean"),
        ("1.5", "got a number"),
        ('{"a": "\\ud800"}', "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_arguments_that_do_not_parse(text, words):
    """The position or the kind of the mistake is named."""
    with pytest.raises(ToolInvalidArgumentsError, match=words):
        parse_arguments(text)


def test_nul_characters_are_replaced_and_counted():
    """A result with NULs stays readable, and says what was done to it."""
    assert text_of("a\0b\0") == "a\ufffdb\ufffd\n[antiphon: 2 NUL characters were replaced]"
    assert text_of("\0") == "\ufffd\n[antiphon: 1 NUL character was replaced]"
    assert "\0" not in text_of({"a": "\0"})


async def test_nul_characters_in_errors():
    """An error's message is cleaned like a result."""
    registry = ToolRegistry([Remote("far", fails=ValueError("a\0b"))])
    assert "\0" not in (await registry.dispatch(call("far", ""))).output


def test_lone_surrogates_are_replaced():
    """What is not Unicode cannot be stored or sent: it is replaced."""
    text_of("é\ud800").encode()


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "no-such-type"},
        {"$ref": "#/nowhere"},
        {"properties": {"a": {"$ref": "https://example.invalid/a"}}},
    ],
    ids=repr,
)
def test_schemas_that_are_none(parameters):
    """A tool with a broken schema is refused when it is learnt, and nothing is fetched for it."""
    with pytest.raises(ConfigurationError, match="parameters of tool 'x' are not a JSON Schema"):
        ArgumentsValidator(ToolSchema(name="x", parameters=parameters))


def test_at_most_five_complaints_and_none_very_long():
    """A model's wrong megabyte is not echoed back."""
    schema = ToolSchema(name="x", parameters={"type": "object", "additionalProperties": {"type": "integer"}})
    with pytest.raises(ToolInvalidArgumentsError) as caught:
        ArgumentsValidator(schema).check({f"k{i}": "v" * 100_000 for i in range(9)})
    assert caught.value.message.count("$.k") == 5
    assert len(caught.value.message) < 2000
