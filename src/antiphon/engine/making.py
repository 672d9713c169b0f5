"""From what a user gives the engine to what it works with."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from antiphon.domain.errors import ConfigurationError
from antiphon.tools.function import FunctionTool, FunctionToolExecutor
from antiphon.tools.protocol import NoOpToolExecutor, ToolExecutor
from antiphon.tools.registry import ToolRegistry
from antiphon.upstream.chat import ChatCompletionsClient
from antiphon.upstream.protocol import InferenceClient, UpstreamTarget
from antiphon.upstream.routing import ModelRoute, Router

Upstream = str | UpstreamTarget | InferenceClient

DEFAULT_UPSTREAM = "default"


def executor_of(tools: Sequence[Callable[..., Any] | FunctionTool | ToolExecutor]) -> ToolExecutor:
    """One executor for functions and executors together."""
    functions = [tool for tool in tools if not hasattr(tool, "execute")]
    executors: list[Any] = [tool for tool in tools if hasattr(tool, "execute")]
    if functions:
        executors.insert(0, FunctionToolExecutor(cast("list[Any]", functions)))
    return ToolRegistry(executors) if executors else NoOpToolExecutor()


def inference_of(upstream: Upstream, models: Mapping[str, ModelRoute] | None) -> InferenceClient:
    """A client for a base URL or target, with the routes; a client given is used as it is."""
    if isinstance(upstream, str):
        upstream = target_of(upstream)
    if isinstance(upstream, UpstreamTarget):
        routes = models or {"*": ModelRoute(upstreams=(DEFAULT_UPSTREAM,))}
        return Router({DEFAULT_UPSTREAM: ChatCompletionsClient(upstream)}, routes)
    if models is not None:
        raise ConfigurationError(
            "`models` needs `upstream` to be a URL or a target; a client brings its own routes.",
            hint="Give a Router with these routes as `upstream`.",
        )
    return upstream


def target_of(base_url: str, api_key: str | None = None) -> UpstreamTarget:
    """The chat-completions target under a base URL such as `http://localhost:11434/v1`."""
    scheme, _, rest = base_url.partition("://")
    host, _, path = rest.partition("/")
    if scheme not in {"http", "https"} or not host:
        raise ConfigurationError(
            f"{base_url!r} is not the base URL of a model server.",
            hint="It looks like http://localhost:11434/v1.",
        )
    return UpstreamTarget(
        f"{scheme}://{host}", f"/{path.strip('/')}/chat/completions".replace("//", "/"), api_key
    )
