"""The names of the contract: importable from `antiphon`, with the shapes that were asked for."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import antiphon
from antiphon import Error, ExecutorError, InferenceError, LoopError, StoreError, ToolError

CONTRACT = {
    # steps: who stores them
    "StepKind", "StepState", "StepId", "ResponseStep", "CreateStepInput", "ResponseStepStore", "DuplicateStep",
    "StepAlreadyTerminal", "ClaimLost",
    # steps: who drives them
    "StepDescriptor", "NextAction", "AppendSteps", "Complete", "Fail", "Pause", "RecordedStep", "ChainStep",
    "MultiStepStore", "run_response_loop", "LoopConfig", "UpstreamTarget", "EventSink", "StoreError",
    "ExecutorError", "LoopError",
    # tools
    "ToolSchema", "ToolError", "RequestContext", "ToolExecutor", "NoOpToolExecutor", "ToolRegistry", "ToolCall",
    "ToolResult", "tool", "ToolContext", "Engine",
    # step functions
    "ExecutionContext", "rehydrate_conversation", "call_inference", "dispatch_tools", "assemble_response",
    "persist_response", "execute", "Response", "Conversation", "Item", "InferenceRequest", "InferenceResult",
    "InferenceEvent", "ResponseStore", "InferenceClient", "Error",
}  # fmt: skip

METHODS = {
    "ResponseStepStore": {
        "create_step", "get_step", "list_chain", "list_scope", "mark_step_processing", "complete_step", "fail_step",
        "cancel_step", "requeue_step_for_retry",
    },
    "MultiStepStore": {
        "next_action_for", "record_step", "mark_step_processing", "complete_step", "fail_step", "list_chain",
        "assemble_response",
    },
    "ResponseStore": {"get_response", "get_items", "persist"},
    "ToolExecutor": {"tools", "execute"},
    "InferenceClient": {"call"},
    "EventSink": {"emit"},
    "ToolRegistry": {"has_tool", "dispatch"},
    "RequestContext": {"with_model", "with_extension"},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CONTRACT))
def test_names_are_importable(name):
    """Each name of the contract comes from `antiphon` itself."""
    assert getattr(antiphon, name) is not None
    assert name in antiphon.__all__


def test_what_is_offered_exists():
    """Every name in `__all__` can be imported, and `dir` shows them."""
    for name in antiphon.__all__:
        getattr(antiphon, name)
    assert set(dir(antiphon)) == set(antiphon.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        antiphon.nothing  # noqa: B018 - the access is the test


def test_the_lists_of_names_agree():
    """Names are listed for people, for type checkers and for loading: all three say the same."""
    tree = ast.parse(Path(antiphon.__file__).read_text(encoding="utf-8"))
    for_checkers = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("antiphon.")
        for alias in node.names
    }
    loaded = {name for names in antiphon._HOME.values() for name in names}
    assert for_checkers == loaded == set(antiphon.__all__) - {"__version__"}


@pytest.mark.parametrize(("name", "methods"), METHODS.items())
def test_protocols_have_their_methods(name, methods):
    """Each method of the contract by its name; those that do I/O are coroutine functions."""
    home = getattr(antiphon, name)
    for method in methods:
        function = getattr(home, method)
        if name not in {"EventSink", "InferenceClient", "RequestContext"} and method != "has_tool":
            assert inspect.iscoroutinefunction(function), f"{name}.{method}"


SIGNATURES = {
    "run_response_loop": (
        "store", "tools", "tool_context", "model_target", "event_sink", "request_id", "scope_parent", "config",
        "depth",
    ),
    "rehydrate_conversation": ("previous_response_id", "ctx"),
    "call_inference": ("conversation", "request", "ctx"),
    "dispatch_tools": ("tool_calls", "ctx"),
    "assemble_response": ("request_id", "output", "model", "metadata"),
    "persist_response": ("response", "conversation_id", "previous_response_id", "ctx"),
    "execute": ("request", "ctx"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "parameters"), SIGNATURES.items())
def test_functions_have_their_parameters(name, parameters):
    """The parameters in the order of the contract."""
    assert tuple(inspect.signature(getattr(antiphon, name)).parameters) == parameters


def test_the_loops_defaults():
    """Eight levels, ten iterations, the top of a run."""
    config = antiphon.LoopConfig()
    assert (config.max_response_step_depth, config.max_response_iterations) == (8, 10)
    signature = inspect.signature(antiphon.run_response_loop)
    assert signature.parameters["scope_parent"].default is None
    assert signature.parameters["depth"].default == 0
    assert signature.parameters["request_id"].kind is inspect.Parameter.KEYWORD_ONLY


TOOL_ERRORS = {
    "NotFound": ("ToolNotFoundError", "Tool not found: x"),
    "ExecutionError": ("ToolExecutionError", "Tool execution error: x"),
    "InvalidArguments": ("ToolInvalidArgumentsError", "Invalid arguments: x"),
    "Timeout": ("ToolTimeoutError", "Tool timeout: x"),
}


@pytest.mark.parametrize(("alias", "named"), TOOL_ERRORS.items())
def test_tool_errors_have_aliases_and_read_well(alias, named):
    """`ToolError.NotFound` is `ToolNotFoundError`, and so on; `str()` reads as in the contract."""
    kind = getattr(ToolError, alias)
    assert kind.__name__ == named[0]
    assert issubclass(kind, ToolError)
    assert str(kind("x")) == named[1]
    with pytest.raises(ToolError):
        raise kind("x")


def test_executor_errors_are_tool_errors():
    """`ExecutorError` is `NotFound` or `ExecutionError`, the same classes."""
    assert ExecutorError.NotFound is ToolError.NotFound
    assert ExecutorError.ExecutionError is ToolError.ExecutionError
    assert issubclass(ToolError.NotFound, ExecutorError)


def test_loop_errors_have_their_variants():
    """Each variant is a `LoopError` of its own, told apart by its code."""
    variants = [
        "Failed",
        "MaxIterationsExceeded",
        "MaxDepthExceeded",
        "EmptyAction",
        "Store",
        "Executor",
        "Interrupted",
    ]
    kinds = [getattr(LoopError, name) for name in variants]
    assert all(issubclass(kind, LoopError) for kind in kinds)
    assert len({kind.default_code for kind in kinds}) == len(set(kinds)) == 7
    assert LoopError.Failed({"code": "c", "message": "m"}).payload == {"code": "c", "message": "m"}
    assert str(LoopError.Failed({"message": "m"})) == "m"


def _tree(kind):
    yield kind
    for below in kind.__subclasses__():
        yield from _tree(below)


def test_there_is_one_tree_of_errors():
    """A branch for each domain under one root, and each error can be told on the wire."""
    for branch in (
        StoreError,
        InferenceError,
        ToolError,
        antiphon.SerializationError,
        LoopError,
        antiphon.RequestError,
    ):
        assert issubclass(branch, Error)
    for kind in set(_tree(Error)):
        assert kind.default_code
        assert kind.type
        assert 400 <= kind.http_status < 600
        assert kind.__doc__


def test_an_error_carries_what_to_do_next():
    """Code, place and hint are there for whoever shows them."""
    error = antiphon.RequestError("no", param="input[0]", hint="say yes")
    assert (str(error), error.code, error.param, error.hint) == (
        "no",
        "invalid_request",
        "input[0]",
        "say yes",
    )
    assert error.http_status == 400


def test_importing_loads_nothing_heavy():
    """`import antiphon` reads no more than the package's own first page."""
    code = "import sys, antiphon; print(' '.join(sorted(m for m in sys.modules if m.startswith(('antiphon', 'aiohttp', 'starlette', 'uvicorn')))))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["antiphon"]


def test_there_is_a_version():
    """It is the one that was built."""
    from importlib.metadata import version

    assert antiphon.__version__ == version("antiphon")
