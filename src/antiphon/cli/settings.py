"""The configuration's schema: one for the file, the environment and the flags.

Every key has its description here; `docs/configuration.md` is generated from it. Values are checked
one by one here, and against each other in `checks`. Where a value came from is known to `loading`.
"""

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from antiphon.cli.quantities import parse_duration, parse_size

Duration = Annotated[float, BeforeValidator(parse_duration), Field(ge=0)]
Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]


def _http_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError(f"{value!r} is not an address; write it like http://localhost:8000/v1")
    return value


def _store_url(value: str) -> str:
    if value != "memory:" and value.removeprefix("sqlite:///") in ("", value):
        raise ValueError(f"{value!r} is not a store; write sqlite:///FILE or memory:")
    return value


def _one_or_many(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


HttpUrl = Annotated[str, AfterValidator(_http_url)]
StoreUrl = Annotated[str, AfterValidator(_store_url)]
Names = Annotated[tuple[str, ...], BeforeValidator(_one_or_many)]
Secrets = Annotated[tuple[SecretStr, ...], BeforeValidator(_one_or_many)]


class Section(BaseModel):
    """A part of the configuration: immutable, and strict about its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class UpstreamSettings(Section):
    """A model server."""

    url: HttpUrl = Field(description="Base address of the model server, up to and including `/v1`.")
    api: Literal["auto", "chat", "responses"] = Field(
        default="auto",
        description="What it speaks: `chat` completions; `auto` finds out. `responses` is not available yet.",
    )
    api_key: SecretStr | None = Field(
        default=None, description="Sent as a bearer token; without it no Authorization header is sent."
    )


class ModelSettings(Section):
    """A route: what happens to requests that name this model. The name `*` catches all others."""

    upstream: Names = Field(
        description="The upstream that answers, or a list: the next is asked when one cannot answer."
    )
    model: str | None = Field(
        default=None, description="The model name sent upstream; by default the requested one."
    )
    tools: Names | None = Field(
        default=None, description="The tools these requests may use, by name; by default every tool."
    )


class ToolSettings(Section):
    """The tools that run in this server."""

    python: Names = Field(
        default=(),
        description="Files (`tools.py`), modules (`pkg.tools`) or names in them (`pkg.tools:refund`).",
    )


class ServerSettings(Section):
    """Where the server listens, and whom it lets in."""

    host: str = Field(default="127.0.0.1", description="The address to listen on.")
    port: int = Field(default=8080, ge=0, le=65535, description="The port; 0 picks a free one and prints it.")
    api_keys: Secrets = Field(
        default=(),
        description="Keys that clients must send one of. Without any, everybody who can connect may.",
    )
    max_body: Size = Field(default=64_000_000, description="The largest request body accepted.")
    insecure: bool = Field(default=False, description="Allow listening beyond this machine without API keys.")


class LimitSettings(Section):
    """What one response may use, and how much work may be open."""

    max_iterations: int = Field(default=10, ge=1, description="Model calls in one scope of a response.")
    max_depth: int = Field(default=8, ge=1, description="Levels of agents inside agents.")
    running: int = Field(default=256, ge=1, description="Responses worked on at the same time.")
    waiting: int = Field(
        default=1024, ge=0, description="Responses that may wait for a place; more are refused with 429."
    )


class DurabilitySettings(Section):
    """When things are written down, and what happens to work that was cut off."""

    flush_window: Duration = Field(
        default=0.005, description="How long events may be collected before they are written and then sent."
    )
    on_disconnect: Literal["cancel", "continue"] = Field(
        default="cancel", description="What becomes of a foreground response when its last reader has gone."
    )
    grace: Duration = Field(
        default=30.0,
        description="How long the client of a foreground response may be gone, also after a crash.",
    )
    recovery: bool = Field(default=True, description="Go on, at start, with the work that a crash left open.")


class LogSettings(Section):
    """What is written to stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least level shown."
    )
    format: Literal["auto", "console", "json"] = Field(
        default="auto", description="`auto` is `console` on a terminal and `json` elsewhere."
    )


class Settings(BaseSettings):
    """The whole configuration. `loading.load` fills it from its layers, lowest first."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    upstreams: dict[str, UpstreamSettings] = Field(
        default_factory=dict, description="The model servers, by names of your choice."
    )
    models: dict[str, ModelSettings] = Field(
        default_factory=dict,
        description="Which upstream answers for which model. Without any, a single upstream answers for all.",
    )
    tools: ToolSettings = Field(default_factory=ToolSettings)
    store: StoreUrl = Field(
        default="sqlite:///antiphon.db",
        description="Where everything is kept: `sqlite:///FILE` (`sqlite:////absolute/file`) or `memory:`.",
    )
    server: ServerSettings = Field(default_factory=ServerSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    durability: DurabilitySettings = Field(default_factory=DurabilitySettings)
    log: LogSettings = Field(default_factory=LogSettings)
