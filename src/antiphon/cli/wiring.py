"""From settings to things that run: upstream clients, routes, tools, the engine's limits."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from antiphon.cli.checks import routes
from antiphon.cli.loading import Configuration
from antiphon.cli.settings import Settings, UpstreamSettings
from antiphon.domain.errors import ConfigurationError
from antiphon.domain.limits import Durability, Limits
from antiphon.tools.function import FunctionTool
from antiphon.tools.loading import load_tools
from antiphon.upstream.chat import ChatCompletionsClient, Timeouts
from antiphon.upstream.protocol import UpstreamTarget
from antiphon.upstream.routing import ModelRoute, Router

_COMPLETIONS = "/chat/completions"


def target_of(upstream: UpstreamSettings) -> UpstreamTarget:
    """Where chat completions are asked for: the URL's path, `/v1` where it has none."""
    parts = urlsplit(upstream.url)
    path = parts.path.rstrip("/").removesuffix(_COMPLETIONS) or "/v1"
    key = upstream.api_key.get_secret_value() if upstream.api_key else None
    return UpstreamTarget(f"{parts.scheme}://{parts.netloc}", path + _COMPLETIONS, key)


def clients_of(settings: Settings) -> dict[str, ChatCompletionsClient]:
    """One client per upstream."""
    return {
        name: ChatCompletionsClient(target_of(each), timeouts=_timeouts_of(each))
        for name, each in settings.upstreams.items()
    }


def _timeouts_of(upstream: UpstreamSettings) -> Timeouts:
    given = upstream.timeouts
    return Timeouts(
        connect_s=given.connect, first_byte_s=given.first_byte, idle_s=given.idle, total_s=given.total
    )


def routes_of(settings: Settings) -> dict[str, ModelRoute]:
    """The routes as the router wants them."""
    return {
        name: ModelRoute(upstreams=route.upstream, model=route.model, tools=route.tools)
        for name, route in routes(settings).items()
    }


def router_of(settings: Settings) -> Router:
    """All upstreams behind one client."""
    return Router(clients_of(settings), routes_of(settings))


def tools_of(configuration: Configuration) -> list[FunctionTool]:
    """The tools of every source; `ConfigurationError` when a source, or a tool name in a route, is wrong."""
    found: dict[str, tuple[str, FunctionTool]] = {}
    for source in configuration.settings.tools.python:
        for tool in load_tools(source):
            name = tool.schema.name
            first_source, first = found.setdefault(name, (source, tool))
            if first.function is not tool.function:
                where = configuration.describe("tools", "python")
                raise ConfigurationError(
                    f"{where}: {first_source} and {source} both define a tool {name!r}; "
                    "give one of them another name: @tool(name=…)."
                )
    _check_tool_names(configuration, tuple(found))
    return [tool for _, tool in found.values()]


def _check_tool_names(configuration: Configuration, known: Sequence[str]) -> None:
    for model, route in configuration.settings.models.items():
        for name in route.tools or ():
            if name not in known:
                where = configuration.describe("models", model, "tools")
                there = (
                    f"there is {', '.join(known)}" if known else "no tools are loaded (--tools, tools.python)"
                )
                raise ConfigurationError(f"{where}: there is no tool {name!r}; {there}.")


def limits_of(settings: Settings) -> Limits:
    """The engine's limits."""
    limits = settings.limits
    return Limits(
        max_iterations=limits.max_iterations,
        max_depth=limits.max_depth,
        running=limits.running,
        waiting=limits.waiting,
        parallel_tools=limits.parallel_tools,
        model_attempts=limits.model_attempts,
        wall_time_s=limits.wall_time,
    )


def durability_of(settings: Settings) -> Durability:
    """The engine's durability."""
    durability = settings.durability
    return Durability(
        flush_window_s=durability.flush_window,
        on_disconnect=durability.on_disconnect,
        grace_s=durability.grace,
        recovery=durability.recovery,
        max_takeovers=durability.max_takeovers,
        shutdown_grace_s=durability.shutdown_grace,
    )
