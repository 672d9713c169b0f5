"""`antiphon config`: what the configuration amounts to, and where each value came from."""

from dataclasses import replace
from typing import Annotated, Any

from cyclopts import App, Parameter

from antiphon.cli.flags import Flags

app = App(name="config", help="Show the effective configuration.", version_flags=())


@app.command
def show(
    upstream_url: str | None = None,
    /,
    *,
    flags: Flags | None = None,
    origin: Annotated[bool, Parameter(help="Say where each value came from.")] = False,
) -> None:
    """Print every effective value, one per line; secrets are masked. Takes the flags of `serve`."""
    from antiphon.cli.loading import effective_values, load
    from antiphon.cli.schema import dotted

    configuration = load(replace(flags or Flags(), upstream_url=upstream_url))
    rows = [
        (f"{dotted(place)}: {as_yaml(place, value)}", where)
        for place, value, where in effective_values(configuration)
    ]
    width = max(len(text) for text, _ in rows)
    for text, where in rows:
        print(f"{text:<{width}}  # {where}" if origin else text)


def as_yaml(place: tuple[str, ...], value: Any) -> str:
    """A value as it would stand in the file, its secrets masked."""
    import json

    from antiphon.cli.loading import masked
    from antiphon.cli.quantities import format_duration, format_size

    match place:
        case ("durability", "flush_window" | "grace"):
            return format_duration(value)
        case ("server", "max_body"):
            return format_size(value)
        case ("upstreams", _, "url"):
            return _without_password(value)
        case _:
            shown = masked(value)
            return shown if isinstance(shown, str) and shown else json.dumps(shown, ensure_ascii=False)


def _without_password(url: str) -> str:
    from urllib.parse import urlsplit

    host = urlsplit(url).netloc
    credentials, at, bare = host.rpartition("@")
    return url.replace(host, f"********@{bare}", 1) if at and credentials else url
