"""The configuration file: YAML with `${env.…}`, each value knowing its line.

Scalars stay text, whatever YAML would make of them (`on`, `2024-05-01`, `1.0`): the schema decides what
they are. Null says nothing about a key, so that an empty section is no mistake.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from antiphon.cli.interpolation import InterpolationError, interpolate
from antiphon.cli.layers import Layer
from antiphon.cli.schema import Place, dotted, is_section, require_known
from antiphon.domain.errors import ConfigurationError

_NULL_TAG = "tag:yaml.org,2002:null"


def file_layer(path: Path, environ: Mapping[str, str]) -> Layer:
    """The layer of a file; each value's origin is `file:line`. Raises `ConfigurationError` with the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: the configuration file cannot be read: {error}.") from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        advice = " A text that holds `: `, ends in `:`, or has ${…} inside { } or [ ], needs quotes."
        raise ConfigurationError(
            f"{path}:{line}: this is not valid YAML: {error.problem}.{advice}"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: this is not valid YAML: {error}.") from error
    reader = _Reader(path, environ)
    if root is not None:
        reader.read(root, (), ())
    return reader.layer


class _Reader:
    """Walks the nodes of a file and puts what they hold into a layer."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        self.layer = Layer()
        self._path = path
        self._environ = environ

    def read(self, node: yaml.Node, place: Place, around: tuple[yaml.Node, ...]) -> None:
        if node.tag == _NULL_TAG:
            return
        if node in around:
            raise self._error(node, f"{dotted(place)} contains itself.")
        match node:
            case yaml.MappingNode():
                self._read_mapping(node, place, (*around, node))
            case _ if is_section(place):
                name = dotted(place) or "the file"
                raise self._error(node, f"{name} is a section: write its keys below it, indented.")
            case yaml.SequenceNode():
                read = [self._text(each, place) for each in node.value]
                used = tuple(name for _, names in read for name in names)
                self._put(node, place, [text for text, _ in read], used)
            case _:
                text, used = self._text(node, place)
                self._put(node, place, text, used)

    def _read_mapping(self, node: yaml.MappingNode, place: Place, around: tuple[yaml.Node, ...]) -> None:
        if place:
            self.layer.put(place, {}, self._where(node))
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            here = (*place, name)
            if name in seen:
                raise self._error(key, f"{dotted(here)} is set a second time; keep one of them.")
            seen.add(name)
            require_known(here, self._where(key))
            self.read(value, here, around)

    def _text(self, node: yaml.Node, place: Place) -> tuple[str, tuple[str, ...]]:
        if not isinstance(node, yaml.ScalarNode):
            raise self._error(node, f"{dotted(place)}: a plain value is expected here.")
        try:
            return interpolate(node.value, self._environ)
        except InterpolationError as error:
            raise self._error(node, f"{dotted(place)}: {error}.") from error

    def _put(self, node: yaml.Node, place: Place, value: Any, used: tuple[str, ...]) -> None:
        origin = self._where(node) + (f" (from {', '.join(used)})" if used else "")
        self.layer.put(place, value, origin)

    def _where(self, node: yaml.Node) -> str:
        return f"{self._path}:{node.start_mark.line + 1}"

    def _error(self, node: yaml.Node, message: str) -> ConfigurationError:
        return ConfigurationError(f"{self._where(node)}: {message}")
