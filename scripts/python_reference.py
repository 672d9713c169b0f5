"""docs/python-api.md, from the source: every public name with its signature and its docstring.

Read from the syntax tree rather than from running objects, so that annotations stand here as they were
written, whatever Python writes the page. `generate_reference.py` calls it.
"""

import ast
import enum
import inspect
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import antiphon
import antiphon.engine.responses
import antiphon.testing

HEAD = """\
<!-- Written by scripts/generate_reference.py from the docstrings; change those instead. -->

# Python API

Everything here is imported from `antiphon`, except where a section names another module. What is not on this
page is not public, and may change without notice. Types are checked: the package is typed, mypy strict.
"""

SECTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "The engine",
        "Drives responses, durably. Begin here.",
        ("Engine", "Limits", "Durability", "Response", "Usage", "Event", "RequestContext"),
    ),
    ("The HTTP application", "The engine's HTTP side, for any ASGI server.", ("create_app", "ServerOptions")),
    (
        "Tools",
        "Functions as tools, and executors of your own.",
        (
            "tool",
            "ToolContext",
            "ToolEffect",
            "ToolKind",
            "ToolSchema",
            "ToolCall",
            "ToolResult",
            "FunctionTool",
            "FunctionToolExecutor",
            "ToolExecutor",
            "NoOpToolExecutor",
            "ToolRegistry",
        ),
    ),
    (
        "Models",
        "Whoever answers.",
        (
            "InferenceClient",
            "ChatCompletionsClient",
            "UpstreamTarget",
            "Router",
            "ModelRoute",
            "InferenceRequest",
            "InferenceEvent",
            "TextDelta",
            "ReasoningDelta",
            "RefusalDelta",
            "CallDelta",
            "InferenceFinished",
            "InferenceResult",
        ),
    ),
    (
        "Step functions",
        "What the loop is made of, for loops of your own. Not durable by themselves.",
        (
            "ExecutionContext",
            "Conversation",
            "Item",
            "rehydrate_conversation",
            "call_inference",
            "dispatch_tools",
            "assemble_response",
            "persist_response",
            "execute",
        ),
    ),
    (
        "The loop",
        "For stores of your own.",
        (
            "run_response_loop",
            "MultiStepStore",
            "EventSink",
            "LoopConfig",
            "NextAction",
            "AppendSteps",
            "StepDescriptor",
            "Complete",
            "Fail",
            "Pause",
            "ChainStep",
            "RecordedStep",
        ),
    ),
    (
        "Stores",
        "Where everything is kept.",
        (
            "open_store",
            "Store",
            "ResponseStore",
            "ResponseStepStore",
            "ResponseStep",
            "CreateStepInput",
            "StepId",
            "StepKind",
            "StepState",
            "Claim",
        ),
    ),
    (
        "Errors",
        "One tree under `Error`; each has `code`, `param`, `hint` and `http_status`.",
        (
            "Error",
            "RequestError",
            "ConfigurationError",
            "StoreError",
            "ClaimLost",
            "DuplicateStep",
            "StepAlreadyTerminal",
            "InferenceError",
            "ExecutorError",
            "ToolError",
            "SerializationError",
            "LoopError",
            "StreamCutError",
        ),
    ),
)
TESTING = "Testing"
TESTING_ABOUT = "From `antiphon.testing`: test doubles and judges, for your own tests."

_WIDEST = 100

_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def python_reference() -> str:
    """The whole page. A public name without a section stands under "More"."""
    placed = {"__version__", *(name for _, _, names in SECTIONS for name in names)}
    more = tuple(name for name in antiphon.__all__ if name not in placed)
    parts = [HEAD]
    for title, about, listed in (*SECTIONS, *((("More", "", more),) if more else ())):
        names = [name for name in listed if name in antiphon.__all__]
        parts.append(f"## {title}\n\n{about}\n")
        parts += [_entry(antiphon, name) for name in names]
        if "Engine" in names:
            parts.insert(-len(names) + 1, _entry(antiphon.engine.responses, "Responses", "engine.responses"))
    parts.append(f"## {TESTING}\n\n{TESTING_ABOUT}\n")
    parts += [_entry(antiphon.testing, name) for name in antiphon.testing.__all__]
    return "\n".join(parts)


def _entry(package: ModuleType, name: str, title: str = "") -> str:
    value = getattr(package, name)
    found = _definition(value, name)
    if found is None:
        return f"### `{title or name}`\n\n{_alias(package, name, value)}\n"
    parts = [f"### `{title or name}`\n"]
    match found:
        case ast.ClassDef():
            parts += _class_parts(found, value)
        case _:
            parts += [_code(_signatures(*_forms(value, name))), _said(found)]
    return "\n".join(parts)


def _definition(value: Any, name: str) -> _Definition | None:
    """The definition that the name leads to; None for an alias."""
    if not (inspect.isclass(value) or inspect.isfunction(value)) or value.__name__ != name:
        return None
    body = _tree(value.__module__).body
    found = [node for node in body if isinstance(node, _Definition) and node.name == name]
    return found[-1] if found else None


def _forms(value: Any, name: str) -> list[_Definition]:
    """The overloads of a function, or the function itself."""
    body = _tree(value.__module__).body
    found = [node for node in body if isinstance(node, _Definition) and node.name == name]
    return found[:-1] or found


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(import_module(module)))


def _alias(package: ModuleType, name: str, value: Any) -> str:
    """What an alias stands for, as it was written."""
    homes: dict[str, str] = getattr(package, "_MODULE_OF", {})
    for node in _tree(homes.get(name, package.__name__)).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return f"Is `{ast.unparse(node.value)}`."
    return f"Is `{value!r}`."


def _class_parts(node: ast.ClassDef, value: type) -> Iterator[str]:
    if issubclass(value, enum.Enum):
        yield _said(node)
        yield "One of " + ", ".join(f"`{member.value}`" for member in value) + ".\n"
        return
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    shown = [ast.unparse(each) for each in fields if not ast.unparse(each.target).startswith("_")]
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    constructor = [each for each in methods if each.name == "__init__"]
    head = f"class {node.name}" + _bases(node)
    yield _code([head, *(f"    {line}" for line in shown), *_signatures(*constructor, indent="    ")])
    yield _said(node)
    public = [each for each in methods if not each.name.startswith("_")]
    names = dict.fromkeys(each.name for each in public)
    for name in names:
        same = [each for each in public if each.name == name]
        shape = " (property)" if _is_property(same[-1]) else ""
        about = _summary(same[-1])
        yield f"- `{_one_line(same[-1])}`{shape}" + (f": {about}" if about else "")
    if names:
        yield ""


def _bases(node: ast.ClassDef) -> str:
    bases = [ast.unparse(base) for base in node.bases]
    return f"({', '.join(bases)})" if bases else ""


def _is_property(node: _Definition) -> bool:
    return any(ast.unparse(each) == "property" for each in node.decorator_list)


def _signatures(*nodes: _Definition, indent: str = "") -> list[str]:
    return [
        line
        for node in nodes
        if not isinstance(node, ast.ClassDef)
        for line in _signature(node, indent).splitlines()
    ]


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, indent: str) -> str:
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    arguments = _arguments(node)
    whole = f"{indent}{word} {node.name}({', '.join(arguments)}){returns}"
    if len(whole) <= _WIDEST:
        return whole
    lines = [f"{indent}    {argument}," for argument in arguments]
    return "\n".join([f"{indent}{word} {node.name}(", *lines, f"{indent}){returns}"])


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Each parameter as it was written, the marks `/` and `*` among them."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults))
    shown = [_argument(*each) for each in zip(positional, [*defaults, *given.defaults], strict=True)]
    if given.posonlyargs:
        shown.insert(len(given.posonlyargs), "/")
    if given.vararg is not None:
        shown.append("*" + ast.unparse(given.vararg))
    elif given.kwonlyargs:
        shown.append("*")
    shown += [_argument(*each) for each in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg is not None:
        shown.append("**" + ast.unparse(given.kwarg))
    return [each for each in shown if each not in {"self", "cls"}]


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    text = ast.unparse(argument)
    if default is None:
        return text
    return f"{text} = {ast.unparse(default)}" if argument.annotation else f"{text}={ast.unparse(default)}"


def _one_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    if _is_property(node):
        return node.name
    word = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{word}{node.name}({', '.join(_arguments(node))})"


def _said(node: _Definition) -> str:
    return (ast.get_docstring(node) or "").strip() + "\n"


def _summary(node: _Definition) -> str:
    return (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")


def _code(lines: list[str]) -> str:
    return "```python\n" + "\n".join(lines) + "\n```\n"
