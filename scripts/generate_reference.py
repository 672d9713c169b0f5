"""Write docs/configuration.md and docs/python-api.md from the code, or check that they are current.

    python scripts/generate_reference.py          # write
    python scripts/generate_reference.py --check  # exit 1 when one is stale

For the configuration the prose around the tables is here; keys, defaults and descriptions are the
schema's own. The Python API is in `python_reference`.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from python_reference import python_reference

from antiphon.cli.quantities import format_duration, format_size, parse_duration, parse_size
from antiphon.cli.settings import Settings

DOCS = Path(__file__).parent.parent / "docs"

EXAMPLE = """\
upstreams:
  vllm:   {url: "http://vllm:8000/v1"}
  backup: {url: "https://models.example/v1", api_key: "${env.BACKUP_KEY}"}
models:
  "*":     {upstream: vllm}
  support: {upstream: [vllm, backup], model: qwen3, tools: [refund, docs]}
tools:
  python: [my_tools.py]
store: sqlite:///antiphon.db
server: {host: 127.0.0.1, port: 8080}
limits: {running: 256}
durability: {flush_window: 5ms}
"""

EXAMPLES = {
    "One local model": """\
upstreams:
  ollama:
    url: http://localhost:11434/v1
tools:
  python: [my_tools.py]
""",
    "Two names for one model, one of them with tools": """\
upstreams:
  llama:
    url: http://localhost:8000/v1
models:
  plain:
    upstream: llama
    model: qwen3-8b
    tools: []
  support:
    upstream: llama
    model: qwen3-8b
    tools: [find_order, refund]
tools:
  python: [shop.tools]
""",
    "A server for a team, with another model server to fall back on": """\
upstreams:
  gpu:
    url: ${env.GPU_URL:=http://gpu:8000/v1}
  hosted:
    url: https://models.example/v1
    api_key: ${env.HOSTED_KEY}
models:
  "*":
    upstream: [gpu, hosted]
store: sqlite:////var/lib/antiphon/antiphon.db
server:
  host: 0.0.0.0
  api_keys:
    - ${env.TEAM_KEY}
  max_body: 32MB
limits:
  running: 64
  waiting: 256
durability:
  on_disconnect: continue
log:
  format: json
""",
}

_VARIABLES = {
    "ANTIPHON_UPSTREAM": "The address of one upstream, which answers for every model. Wins over the file.",
    "ANTIPHON_UPSTREAM_API_KEY": "The key for an upstream that is given by its address alone.",
    "OPENAI_BASE_URL": "As `ANTIPHON_UPSTREAM`, but only where nothing else names an upstream.",
    "OPENAI_API_KEY": "The key for an upstream given as an argument or by `OPENAI_BASE_URL`, "
    "without `ANTIPHON_UPSTREAM_API_KEY`.",
    "ANTIPHON_API_KEY": "The key that clients must send (`server.api_keys`); `antiphon responses` sends it.",
    "ANTIPHON_URL": "The server that `antiphon responses` talks to.",
}
VARIABLES = "| Variable | Meaning |\n|---|---|\n" + "\n".join(
    f"| `{name}` | {meaning} |" for name, meaning in _VARIABLES.items()
)

HEAD = f"""\
<!-- Written by scripts/generate_reference.py; change the schema in src/antiphon/cli/settings.py instead. -->

# Configuration

Nothing needs to be configured: `antiphon dev` runs without a file, and `antiphon serve URL` with one
argument. What you do configure comes from four places; the later ones win, value by value:

1. the defaults below,
2. `antiphon.yaml` in the working directory, or the file named by `--config`,
3. environment variables,
4. the command line.

`antiphon config show --origin` prints every effective value and where it came from, with secrets masked.

```yaml
{EXAMPLE}```

Unknown keys are refused, with the nearest key that exists. Durations are written `5ms`, `30s`, `2m`, `1h`;
sizes `64MB`, `512KiB`.

## In the file

`${{env.NAME}}` in a string is replaced by the environment variable, `${{env.NAME:=default}}` by the default
when the variable is unset or empty, and `$${{` stands for a literal `${{`. A variable that is not set and has
no default is an error that names file, line and key. Inside `{{ }}` and `[ ]` such a string needs quotes, and
so does `"memory:"`.

## In the environment

`ANTIPHON_` and the path of the key, with `__` between its parts: `ANTIPHON_LIMITS__RUNNING=64`. Lists are
separated by commas or written as JSON; a whole section may be given as a JSON object, for instance
`ANTIPHON_MODELS='{{"*": {{"upstream": "vllm"}}}}'`. Some names are shorter, or mean more:

{VARIABLES}

## On the command line

`antiphon serve`, `antiphon doctor` and `antiphon config show` take the same flags:

| Flag | Key |
|---|---|
| `UPSTREAM_URL` (argument) | `upstreams.default.url`, with `*` routed to it |
| `--host`, `--port`, `--insecure` | `server.host`, `server.port`, `server.insecure` |
| `--store` | `store` |
| `--tools` (may be repeated) | `tools.python` |
| `--api-key-file FILE` | `server.api_keys`, one key per line; `#` begins a comment |
| `--config FILE` | the file itself |

Without API keys a server listens on this machine only: another `server.host` is refused unless
`server.insecure` says that it is meant.

## Keys
"""


def reference() -> str:
    """The whole page."""
    parts = [HEAD]
    plain = {name: field for name, field in Settings.model_fields.items() if _section_of(field) is None}
    parts.append(_table("", plain))
    for name, field in Settings.model_fields.items():
        section = _section_of(field)
        if section is not None:
            named, model = section
            path = f"{name}.{'NAME.' if named else ''}"
            about = field.description or (model.__doc__ or "").strip().partition("\n")[0]
            parts.append(f"### `{name}`\n\n{about}\n\n{_table(path, model.model_fields)}")
    parts.append("## Examples\n")
    parts += [f"{title}:\n\n```yaml\n{text}```\n" for title, text in EXAMPLES.items()]
    return "\n".join(parts)


def _section_of(field: FieldInfo) -> tuple[bool, type[BaseModel]] | None:
    """Whether its entries are named by the user, and what they hold; None for a plain value."""
    annotation = field.annotation
    named = get_origin(annotation) is dict
    model = get_args(annotation)[1] if named else annotation
    return (named, model) if isinstance(model, type) and issubclass(model, BaseModel) else None


def _table(path: str, fields: dict[str, FieldInfo]) -> str:
    rows = ["| Key | Type | Default | Meaning |", "|---|---|---|---|"]
    rows += _rows(path, fields)
    return "\n".join(rows) + "\n"


def _rows(path: str, fields: dict[str, FieldInfo]) -> Iterator[str]:
    for name, field in fields.items():
        section = _section_of(field)
        if section is None:
            yield f"| `{path}{name}` | {_type(field)} | {_default(field)} | {field.description} |"
        else:
            yield from _rows(f"{path}{name}.", section[1].model_fields)


def _type(field: FieldInfo) -> str:
    return _quantity(field.metadata) or _type_name(field.annotation)


def _quantity(metadata: Iterable[Any]) -> str | None:
    validators = [getattr(each, "func", None) for each in metadata]
    if parse_duration in validators:
        return "duration"
    return "size" if parse_size in validators else None


def _type_name(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return _type_name(next(option for option in get_args(annotation) if option is not type(None)))
    if origin is Literal:
        return ", ".join(f"`{option}`" for option in get_args(annotation))
    if origin is tuple:
        return f"list of {_type_name(get_args(annotation)[0])}s"
    if hasattr(annotation, "__metadata__"):
        return _quantity(annotation.__metadata__) or _type_name(annotation.__origin__)
    return {str: "text", int: "integer", bool: "boolean", SecretStr: "secret"}[annotation]


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "required"
    if value is None or value == ():
        return "none"
    match _type(field):
        case "duration":
            return f"`{format_duration(value)}`"
        case "size":
            return f"`{format_size(value)}`"
        case "boolean":
            return f"`{str(value).lower()}`"
        case _:
            return f"`{value}`"


def main() -> int:
    """Write the pages, or compare."""
    stale = []
    for name, page in (("configuration.md", reference), ("python-api.md", python_reference)):
        target, text = DOCS / name, page()
        if target.exists() and target.read_text(encoding="utf-8") == text:
            continue
        stale.append(str(target))
        if "--check" not in sys.argv[1:]:
            target.write_text(text, encoding="utf-8")
    if stale and "--check" in sys.argv[1:]:
        print(f"{', '.join(stale)}: stale; run python scripts/generate_reference.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
