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


class TimeoutSettings(Section):
    """How long a model server may take. An answer that is not streamed has five times `first_byte`."""

    connect: Duration = Field(default=10.0, description="To take the connection.")
    first_byte: Duration = Field(default=120.0, description="From the request to the first byte.")
    idle: Duration = Field(default=60.0, description="Of silence in the middle of an answer.")
    total: Duration = Field(default=1800.0, description="For one answer, retries included.")


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
    timeouts: TimeoutSettings = Field(default_factory=TimeoutSettings)


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
    unknown_tools: Literal["ignore", "reject"] = Field(
        default="ignore",
        description="Tools of a request that cannot be offered here: left out with a warning, or a 400.",
    )
    insecure: bool = Field(default=False, description="Allow listening beyond this machine without API keys.")


class LimitSettings(Section):
    """What one response may use, and how much work may be open."""

    max_iterations: int = Field(default=10, ge=1, description="Model calls in one scope of a response.")
    max_depth: int = Field(default=8, ge=1, description="Levels of agents inside agents.")
    running: int = Field(default=256, ge=1, description="Responses worked on at the same time.")
    waiting: int = Field(
        default=1024, ge=0, description="Responses that may wait for a place; more are refused with 429."
    )
    parallel_tools: int = Field(default=16, ge=1, description="Tool calls of one response at the same time.")
    model_attempts: int = Field(
        default=3, ge=1, description="Tries at one answer that broke off in the middle."
    )
    wall_time: Duration | None = Field(
        default=None,
        description="How long after its admission a response may begin another step; by default for ever.",
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
    max_takeovers: int = Field(
        default=20, ge=1, description="Crashes without an ended step between, after which a response fails."
    )
    shutdown_grace: Duration = Field(
        default=10.0, description="How long a stop waits for calls of `once` tools that are under way."
    )


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
