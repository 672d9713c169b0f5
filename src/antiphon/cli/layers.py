"""Where values of the configuration come from: a file, the environment, flags.

A layer is a tree of values shaped like the schema, and for each of its places the words that name its
origin to a person: `antiphon.yaml:7`, `ANTIPHON_LIMITS__RUNNING`, `--port`. Later layers win.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from antiphon.cli.flags import Flags
from antiphon.cli.schema import Place, annotation_at, dotted, is_list, is_section, leaves, require_known
from antiphon.domain.errors import ConfigurationError

DEFAULT_UPSTREAM = "default"
ENV_PREFIX = "ANTIPHON_"
SHORTHANDS = ("ANTIPHON_API_KEY", "ANTIPHON_UPSTREAM", "ANTIPHON_UPSTREAM_API_KEY", "ANTIPHON_URL")
"""Names that are no paths into the schema. `ANTIPHON_URL` is for `antiphon responses`."""


class Layer(msgspec.Struct, frozen=True):
    """Values from one kind of origin."""

    values: dict[str, Any] = msgspec.field(default_factory=dict)
    origins: dict[Place, str] = msgspec.field(default_factory=dict)

    def put(self, place: Place, value: Any, origin: str) -> None:
        """Set the value at a place, making the sections on the way; a section is put key by key."""
        section = self.values
        for depth, name in enumerate(place[:-1], start=1):
            section = section.setdefault(name, {})
            self.origins.setdefault(place[:depth], origin)
        self.origins[place] = origin
        if isinstance(value, dict):
            section.setdefault(place[-1], {})
            for name, inner in value.items():
                self.put((*place, name), inner, origin)
        else:
            section[place[-1]] = value

    def origin_of(self, place: Place) -> str | None:
        """What set the value at this place in this layer; None when the layer says nothing of it."""
        value: Any = self.values
        for depth, name in enumerate(place):
            if not isinstance(value, dict):
                return self.origins.get(place[:depth])
            if name not in value:
                return None
            value = value[name]
        return None if isinstance(value, dict) and value else self.origins.get(place)


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """The layer of `ANTIPHON_…` variables: `__` goes one level down, lists are JSON or comma-separated.

    Other names without `__` are left alone: orchestrators set such names (`ANTIPHON_SERVICE_HOST`)
    for their own purposes.
    """
    layer = Layer()
    flat_names = {ENV_PREFIX + "_".join(place).upper(): place for place in leaves() if len(place) > 1}
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or name in SHORTHANDS:
            continue
        place = tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))
        if len(place) == 1 and annotation_at(place) is None:
            # Kubernetes gives every container addresses such as ANTIPHON_SERVER_PORT=tcp://10.0.0.1:80.
            if name in flat_names and "://" not in environ[name]:
                meant = ENV_PREFIX + "__".join(flat_names[name]).upper()
                raise ConfigurationError(f"{name} is not a known setting; did you mean {meant}?")
            continue
        require_known(place, name)
        layer.put(place, _from_environment(name, place, environ[name]), name)
    if key := environ.get("ANTIPHON_API_KEY"):
        layer.put(("server", "api_keys"), [key], "ANTIPHON_API_KEY")
    return layer


def _from_environment(name: str, place: Place, text: str) -> Any:
    structured = is_section(place) or is_list(place)
    if structured and text.lstrip()[:1] in ("[", "{"):
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ConfigurationError(f"{name}: this is not valid JSON: {error}.") from error
        _require_all_known(place, value, name)
        return value
    if is_section(place):
        raise ConfigurationError(f"{name} is a section: set {name}__… or give it as a JSON object.")
    if is_list(place):
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _require_all_known(place: Place, value: Any, origin: str) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            require_known((*place, name), origin)
            _require_all_known((*place, name), inner, origin)


def flag_layer(flags: Flags) -> Layer:
    """The layer of the command line."""
    layer = Layer()
    named: tuple[tuple[str, Place, Any], ...] = (
        ("--host", ("server", "host"), flags.host),
        ("--port", ("server", "port"), flags.port),
        ("--store", ("store",), flags.store),
        ("--tools", ("tools", "python"), flags.tools or None),
        ("--insecure", ("server", "insecure"), flags.insecure or None),
    )
    for flag, place, value in named:
        if value is not None:
            layer.put(place, value, flag)
    if flags.api_key_file is not None:
        keys = _keys_in(flags.api_key_file)
        layer.put(("server", "api_keys"), keys, f"--api-key-file {flags.api_key_file}")
    return layer


def _keys_in(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--api-key-file {path}: cannot be read: {error}.") from error
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise ConfigurationError(f"--api-key-file {path}: there is no key in it; write one per line.")
    return keys


def single_upstream_layer(flags: Flags, environ: Mapping[str, str], *, configured: bool) -> Layer:
    """The layer of one upstream given by its address; empty when there is none.

    An argument or `ANTIPHON_UPSTREAM` wins over the file. `OPENAI_BASE_URL` is set on many machines for
    clients, so it only steps in where nothing else names an upstream (`configured`).
    """
    candidates = (
        ("argument UPSTREAM_URL", flags.upstream_url, True),
        ("ANTIPHON_UPSTREAM", environ.get("ANTIPHON_UPSTREAM"), False),
        ("OPENAI_BASE_URL", None if configured else environ.get("OPENAI_BASE_URL"), True),
    )
    layer = Layer()
    origin, url, may_use_openai_key = next((each for each in candidates if each[1]), ("", None, False))
    if url is None:
        return layer
    key_names = ("ANTIPHON_UPSTREAM_API_KEY", "OPENAI_API_KEY")[: 2 if may_use_openai_key else 1]
    key_name = next((name for name in key_names if environ.get(name)), "")
    key = environ.get(key_name)
    # Every key is set, so that nothing of an entry of this name in the file, above all its API key, remains.
    layer.put(("upstreams", DEFAULT_UPSTREAM), {"url": url, "api": "auto"}, origin)
    layer.put(("upstreams", DEFAULT_UPSTREAM, "api_key"), key, key_name or origin)
    layer.put(("models", "*"), {"upstream": [DEFAULT_UPSTREAM], "model": None}, origin)
    return layer


def describe(layers: tuple[Layer, ...], place: Place) -> str:
    """The origin of a place, or of the nearest section around it: for error messages."""
    for depth in range(len(place), 0, -1):
        for layer in reversed(layers):
            if origin := layer.origins.get(place[:depth]):
                return f"{origin}: {dotted(place)}"
    return dotted(place)
