"""Antiphon: the Responses server that does not lose work, as a library.

Begin with `Engine`; for a loop of your own with `ExecutionContext` and the step functions, or with
`run_response_loop` and a `MultiStepStore`. Names are loaded when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "antiphon.domain.actions": (
        "AppendSteps",
        "Complete",
        "Fail",
        "NextAction",
        "Pause",
        "StepDescriptor",
    ),
    "antiphon.domain.errors": (
        "ClaimLost",
        "ConfigurationError",
        "DuplicateStep",
        "Error",
        "ExecutorError",
        "InferenceError",
        "LoopError",
        "RequestError",
        "SerializationError",
        "StepAlreadyTerminal",
        "StoreError",
        "ToolError",
    ),
    "antiphon.domain.events": ("Event",),
    "antiphon.domain.inference": (
        "CallDelta",
        "Conversation",
        "InferenceEvent",
        "InferenceFinished",
        "InferenceRequest",
        "InferenceResult",
        "Item",
        "ReasoningDelta",
        "RefusalDelta",
        "TextDelta",
    ),
    "antiphon.domain.limits": (
        "Durability",
        "Limits",
    ),
    "antiphon.domain.responses": ("Response",),
    "antiphon.domain.steps": (
        "ChainStep",
        "CreateStepInput",
        "RecordedStep",
        "ResponseStep",
        "StepId",
        "StepKind",
        "StepState",
    ),
    "antiphon.domain.tools": (
        "RequestContext",
        "ToolCall",
        "ToolEffect",
        "ToolKind",
        "ToolResult",
        "ToolSchema",
    ),
    "antiphon.domain.usage": ("Usage",),
    "antiphon.engine.context": ("ExecutionContext",),
    "antiphon.engine.engine": ("Engine",),
    "antiphon.engine.execute": ("execute",),
    "antiphon.engine.following": ("StreamCutError",),
    "antiphon.engine.functions": (
        "assemble_response",
        "call_inference",
        "dispatch_tools",
        "persist_response",
        "rehydrate_conversation",
    ),
    "antiphon.engine.loop": ("run_response_loop",),
    "antiphon.engine.protocol": (
        "EventSink",
        "LoopConfig",
        "MultiStepStore",
    ),
    "antiphon.server": (
        "ServerOptions",
        "create_app",
    ),
    "antiphon.store.opening": ("open_store",),
    "antiphon.store.protocol": (
        "Claim",
        "ResponseStepStore",
        "ResponseStore",
        "Store",
    ),
    "antiphon.tools.context": ("ToolContext",),
    "antiphon.tools.function": (
        "FunctionTool",
        "FunctionToolExecutor",
        "tool",
    ),
    "antiphon.tools.protocol": (
        "NoOpToolExecutor",
        "ToolExecutor",
    ),
    "antiphon.tools.registry": ("ToolRegistry",),
    "antiphon.upstream.chat": ("ChatCompletionsClient",),
    "antiphon.upstream.protocol": (
        "InferenceClient",
        "UpstreamTarget",
    ),
    "antiphon.upstream.routing": (
        "ModelRoute",
        "Router",
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name from its home."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'antiphon' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)


if TYPE_CHECKING:
    from antiphon.domain.actions import AppendSteps, Complete, Fail, NextAction, Pause, StepDescriptor
    from antiphon.domain.errors import (
        ClaimLost,
        ConfigurationError,
        DuplicateStep,
        Error,
        ExecutorError,
        InferenceError,
        LoopError,
        RequestError,
        SerializationError,
        StepAlreadyTerminal,
        StoreError,
        ToolError,
    )
    from antiphon.domain.events import Event
    from antiphon.domain.inference import (
        CallDelta,
        Conversation,
        InferenceEvent,
        InferenceFinished,
        InferenceRequest,
        InferenceResult,
        Item,
        ReasoningDelta,
        RefusalDelta,
        TextDelta,
    )
    from antiphon.domain.limits import Durability, Limits
    from antiphon.domain.responses import Response
    from antiphon.domain.steps import (
        ChainStep,
        CreateStepInput,
        RecordedStep,
        ResponseStep,
        StepId,
        StepKind,
        StepState,
    )
    from antiphon.domain.tools import RequestContext, ToolCall, ToolEffect, ToolKind, ToolResult, ToolSchema
    from antiphon.domain.usage import Usage
    from antiphon.engine.context import ExecutionContext
    from antiphon.engine.engine import Engine
    from antiphon.engine.execute import execute
    from antiphon.engine.following import StreamCutError
    from antiphon.engine.functions import (
        assemble_response,
        call_inference,
        dispatch_tools,
        persist_response,
        rehydrate_conversation,
    )
    from antiphon.engine.loop import run_response_loop
    from antiphon.engine.protocol import EventSink, LoopConfig, MultiStepStore
    from antiphon.server import ServerOptions, create_app
    from antiphon.store.opening import open_store
    from antiphon.store.protocol import Claim, ResponseStepStore, ResponseStore, Store
    from antiphon.tools.context import ToolContext
    from antiphon.tools.function import FunctionTool, FunctionToolExecutor, tool
    from antiphon.tools.protocol import NoOpToolExecutor, ToolExecutor
    from antiphon.tools.registry import ToolRegistry
    from antiphon.upstream.chat import ChatCompletionsClient
    from antiphon.upstream.protocol import InferenceClient, UpstreamTarget
    from antiphon.upstream.routing import ModelRoute, Router

__all__ = [
    "AppendSteps",
    "CallDelta",
    "ChainStep",
    "ChatCompletionsClient",
    "Claim",
    "ClaimLost",
    "Complete",
    "ConfigurationError",
    "Conversation",
    "CreateStepInput",
    "DuplicateStep",
    "Durability",
    "Engine",
    "Error",
    "Event",
    "EventSink",
    "ExecutionContext",
    "ExecutorError",
    "Fail",
    "FunctionTool",
    "FunctionToolExecutor",
    "InferenceClient",
    "InferenceError",
    "InferenceEvent",
    "InferenceFinished",
    "InferenceRequest",
    "InferenceResult",
    "Item",
    "Limits",
    "LoopConfig",
    "LoopError",
    "ModelRoute",
    "MultiStepStore",
    "NextAction",
    "NoOpToolExecutor",
    "Pause",
    "ReasoningDelta",
    "RecordedStep",
    "RefusalDelta",
    "RequestContext",
    "RequestError",
    "Response",
    "ResponseStep",
    "ResponseStepStore",
    "ResponseStore",
    "Router",
    "SerializationError",
    "ServerOptions",
    "StepAlreadyTerminal",
    "StepDescriptor",
    "StepId",
    "StepKind",
    "StepState",
    "Store",
    "StoreError",
    "StreamCutError",
    "TextDelta",
    "ToolCall",
    "ToolContext",
    "ToolEffect",
    "ToolError",
    "ToolExecutor",
    "ToolKind",
    "ToolRegistry",
    "ToolResult",
    "ToolSchema",
    "UpstreamTarget",
    "Usage",
    "__version__",
    "assemble_response",
    "call_inference",
    "create_app",
    "dispatch_tools",
    "execute",
    "open_store",
    "persist_response",
    "rehydrate_conversation",
    "run_response_loop",
    "tool",
]
