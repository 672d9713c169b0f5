"""The effective configuration: layers become one `Settings`, and every value knows its origin.

Lowest to highest: defaults, `antiphon.yaml`, the environment, flags. Unknown keys and wrong values are
`ConfigurationError`s that name the place and what to do.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from antiphon.cli.flags import Flags
from antiphon.cli.layers import Layer, describe, environment_layer, flag_layer, single_upstream_layer
from antiphon.cli.schema import Place
from antiphon.cli.settings import Settings
from antiphon.cli.yaml_file import file_layer
from antiphon.domain.errors import ConfigurationError

DEFAULT_FILE = Path("antiphon.yaml")


class Configuration:
    """Settings, and where each of them came from."""

    def __init__(self, settings: Settings, layers: tuple[Layer, ...]) -> None:
        self.settings = settings
        self._layers = layers

    def origin_of(self, *place: str) -> str:
        """The words that name what set this value."""
        for layer in reversed(self._layers):
            if origin := layer.origin_of(place):
                return origin
        return "default"

    def describe(self, *place: str) -> str:
        """A value's name behind its origin, for error messages."""
        return describe(self._layers, place)


def load(flags: Flags | None = None, environ: Mapping[str, str] | None = None) -> Configuration:
    """Read, merge and check each value; `checks` holds them against each other."""
    flags = flags or Flags()
    environ = os.environ if environ is None else environ
    path = flags.config or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)
    given = (file_layer(path, environ) if path else Layer(), environment_layer(environ), flag_layer(flags))
    configured = any(layer.values.get("upstreams") for layer in given)
    layers = (*given, single_upstream_layer(flags, environ, configured=configured))
    try:
        return Configuration(_settings_from(layers), layers)
    except ValidationError as error:
        raise _explained(error, layers) from error


def _settings_from(layers: tuple[Layer, ...]) -> Settings:
    class LayeredSettings(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic-settings' signature
            env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return tuple(_LayerSource(settings_cls, layer) for layer in reversed(layers))

    return LayeredSettings()


class _LayerSource(PydanticBaseSettingsSource):
    """A layer, as pydantic-settings wants to see it."""

    def __init__(self, settings_cls: type[BaseSettings], layer: Layer) -> None:
        super().__init__(settings_cls)
        self._layer = layer

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002
        return self._layer.values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._layer.values


def _explained(error: ValidationError, layers: tuple[Layer, ...]) -> ConfigurationError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = tuple(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        message = "it is required, and missing"
    return ConfigurationError(f"{describe(layers, place)}: {message[:1].lower()}{message[1:]}.")


def effective_values(configuration: Configuration) -> list[tuple[Place, Any, str]]:
    """Every effective value with its place and its origin, in the schema's order; secrets stay wrapped."""
    rows: list[tuple[Place, Any, str]] = []

    def visit(place: Place, value: Any) -> None:
        if isinstance(value, dict) and value:
            for name, inner in value.items():
                visit((*place, name), inner)
        else:
            rows.append((place, value, configuration.origin_of(*place)))

    for name, value in configuration.settings.model_dump().items():
        visit((name,), value)
    return rows


def masked(value: Any) -> Any:
    """A value with its secrets hidden."""
    match value:
        case SecretStr():
            return "********"
        case tuple() | list():
            return [masked(each) for each in value]
        case _:
            return value
