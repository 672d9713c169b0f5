"""The configuration's values held against each other.

`routes` says what each model name leads to; `check` refuses what cannot work or should not be done.
"""

import socket
from urllib.parse import urlsplit

from antiphon.cli.failure import NO_UPSTREAM, CommandFailed
from antiphon.cli.loading import Configuration
from antiphon.cli.settings import ModelSettings, Settings
from antiphon.domain.errors import ConfigurationError

CATCH_ALL = "*"

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_WILDCARD = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared with, not listened on
_DEFAULT_PORTS = {"http": 80, "https": 443}

NO_UPSTREAM_MESSAGE = """\
No upstream is configured, so there is no model to ask. Name one in any of these ways: \
as an argument (antiphon serve http://localhost:8000/v1), under `upstreams:` in antiphon.yaml, \
or in the environment as ANTIPHON_UPSTREAM or OPENAI_BASE_URL. \
To try Antiphon without one, run `antiphon dev`."""


def routes(settings: Settings) -> dict[str, ModelSettings]:
    """The routes as configured. Without any, a single upstream answers for every model."""
    if not settings.models and len(settings.upstreams) == 1:
        return {CATCH_ALL: ModelSettings(upstream=tuple(settings.upstreams))}
    return dict(settings.models)


def check(configuration: Configuration) -> None:
    """Raise when no upstream is named (`CommandFailed`, exit 3) or values disagree (`ConfigurationError`)."""
    if not configuration.settings.upstreams:
        raise CommandFailed(NO_UPSTREAM_MESSAGE, NO_UPSTREAM)
    _check_routes(configuration)
    _check_upstreams(configuration)
    _check_exposure(configuration)


def _check_routes(configuration: Configuration) -> None:
    settings = configuration.settings
    if not routes(settings):
        names = ", ".join(settings.upstreams)
        raise ConfigurationError(
            f"There are several upstreams ({names}) and no route to any of them. Say which answers: "
            f'`models: {{"*": {{upstream: [{names}]}}}}`.'
        )
    for name, route in routes(settings).items():
        where = configuration.describe("models", name, "upstream")
        if not route.upstream:
            raise ConfigurationError(f"{where}: it is empty; name an upstream.")
        for upstream in route.upstream:
            if upstream not in settings.upstreams:
                known = ", ".join(settings.upstreams)
                raise ConfigurationError(f"{where}: there is no upstream {upstream!r}; there is {known}.")


def _check_upstreams(configuration: Configuration) -> None:
    settings = configuration.settings
    for name, upstream in settings.upstreams.items():
        if upstream.api == "responses":
            where = configuration.describe("upstreams", name, "api")
            raise ConfigurationError(f"{where}: `responses` is not available in this version; use `chat`.")
        if leads_to_self(upstream.url, settings.server.host, settings.server.port):
            where = configuration.describe("upstreams", name, "url")
            raise ConfigurationError(
                f"{where}: {upstream.url} is the address this server itself listens on: every request "
                "would come back for ever. Point it at the model server, or listen elsewhere with --port."
            )


def leads_to_self(url: str, host: str, port: int) -> bool:
    """True when this URL would come back to a server listening on host and port."""
    parts = urlsplit(url)
    if port == 0 or (parts.port or _DEFAULT_PORTS.get(parts.scheme)) != port:
        return False
    target = (parts.hostname or "").rstrip(".")
    own = host.strip("[]").lower()
    here = _LOOPBACK | _WILDCARD
    if own in _WILDCARD:
        return target in here or target == socket.gethostname().lower()
    return target == own or (target in here and own in here)


def _check_exposure(configuration: Configuration) -> None:
    server = configuration.settings.server
    if is_loopback(server.host) or server.api_keys or server.insecure:
        return
    where = configuration.describe("server", "host")
    raise ConfigurationError(
        f"{where}: listening on {server.host} lets other machines in, and no API key is set, so anybody "
        "could use your models and tools. Set a key (--api-key-file, ANTIPHON_API_KEY, server.api_keys), "
        "listen on 127.0.0.1, or say --insecure when the network in front keeps strangers out."
    )


def is_loopback(host: str) -> bool:
    """True when only this machine can connect to this address."""
    bare = host.strip("[]").lower()
    return bare in _LOOPBACK or bare.startswith("127.")
