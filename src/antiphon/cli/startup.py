"""What `serve` says when it is ready: where it listens, what it uses, and something to try at once."""

import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from antiphon.cli.checks import CATCH_ALL, routes
from antiphon.cli.settings import Settings
from antiphon.domain.tools import ToolEffect, ToolSchema

_EFFECT_STYLE = {ToolEffect.PURE: "green", ToolEffect.IDEMPOTENT: "cyan", ToolEffect.ONCE: "yellow"}
_MOST_MODELS = 5


def startup_table(
    settings: Settings, address: str, tools: Sequence[ToolSchema], models: Sequence[str]
) -> Table:
    """Address, store, upstreams, models and tools. `models` is what the upstreams list just now."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(
        "address", f"{address}/v1" + ("" if settings.server.api_keys else "  (no API key asked for)")
    )
    table.add_row("store", settings.store + ("  (lost at exit)" if settings.store == "memory:" else ""))
    for name, upstream in settings.upstreams.items():
        table.add_row("upstream", f"{name}  {_without_credentials(upstream.url)}")
    for name, route in routes(settings).items():
        leads_to = ", ".join(route.upstream) + (f" as {route.model}" if route.model else "")
        table.add_row("model", f"{name} → {leads_to}")
    table.add_row("listed now", _listing(models))
    for tool in tools:
        effect = Text(tool.effect, style=_EFFECT_STYLE[tool.effect])
        table.add_row(
            "tool", Text.assemble(tool.name, "  ", effect, "  ", (_first_line(tool.description), "dim"))
        )
    if not tools:
        table.add_row("tools", Text("none: every call goes to the client", style="dim"))
    return table


def print_startup(
    settings: Settings, address: str, tools: Sequence[ToolSchema], models: Sequence[str]
) -> None:
    """The table, a curl line and a Python snippet, on stdout."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(startup_table(settings, address, tools, models))
    print(f"\n{try_it(settings, address, model_to_try(settings, models))}\n", flush=True)


def model_to_try(settings: Settings, models: Sequence[str]) -> str:
    """A model name that leads somewhere: one that was listed, else a configured one."""
    named = [name for name in routes(settings) if name != CATCH_ALL]
    return next(iter([*models, *named]), "MODEL")


def try_it(settings: Settings, address: str, model: str) -> str:
    """Two ways to send the first request."""
    body = json.dumps({"model": model, "input": "Hello", "stream": True})
    key = ' -H "Authorization: Bearer $ANTIPHON_API_KEY"' if settings.server.api_keys else ""
    api_key = 'os.environ["ANTIPHON_API_KEY"]' if settings.server.api_keys else '"none"'
    imports = "import os\n" if settings.server.api_keys else ""
    return (
        f"curl -N {address}/v1/responses -H 'Content-Type: application/json'{key} -d '{body}'\n\n"
        f"{imports}from openai import OpenAI\n"
        f'client = OpenAI(base_url="{address}/v1", api_key={api_key})\n'
        f'print(client.responses.create(model="{model}", input="Hello").output_text)'
    )


def _listing(models: Sequence[str]) -> Text:
    if not models:
        return Text("nothing: no upstream has answered yet", style="yellow")
    more = f", and {len(models) - _MOST_MODELS} more" if len(models) > _MOST_MODELS else ""
    return Text(", ".join(models[:_MOST_MODELS]) + more)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _without_credentials(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
