"""The shape of the configuration, as data: what may stand at a place, and what was meant instead.

A place is a path into the schema: `("limits", "running")`. It is read from `settings.Settings` itself.
"""

import difflib
from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from antiphon.cli.settings import Settings
from antiphon.domain.errors import ConfigurationError

Place = tuple[str, ...]


def dotted(place: Place) -> str:
    """How a person writes a place."""
    return ".".join(place)


def annotation_at(place: Place) -> Any:
    """The type that the schema has at a place; None when the schema has no such place."""
    annotation: Any = Settings
    for name in place:
        match _container(annotation):
            case type() as section:
                field = section.model_fields.get(name)
                if field is None:
                    return None
                annotation = field.annotation
            case (_, value_type):
                annotation = value_type
            case _:
                return None
    return annotation


def is_section(place: Place) -> bool:
    """True where keys stand below a place."""
    return _container(annotation_at(place)) is not None


def is_list(place: Place) -> bool:
    """True where several values may stand."""
    annotation = annotation_at(place)
    options = get_args(annotation) if get_origin(annotation) in (UnionType, Union) else (annotation,)
    return any(get_origin(option) is tuple for option in map(_bare, options))


def require_known(place: Place, origin: str) -> None:
    """Raise a `ConfigurationError` that names the nearest known key when the schema has no such place."""
    for depth in range(1, len(place) + 1):
        here = place[:depth]
        if annotation_at(here) is None:
            raise ConfigurationError(f"{origin}: {dotted(here)} is not a known setting; {_remedy(here)}")


def leaves() -> Iterator[Place]:
    """Every place with a fixed name that holds a value."""
    for name, field in Settings.model_fields.items():
        section = _container(field.annotation)
        if isinstance(section, type):
            yield from ((name, inner) for inner in section.model_fields)
        elif section is None:
            yield (name,)


def _remedy(place: Place) -> str:
    section = _container(annotation_at(place[:-1]))
    if not isinstance(section, type):
        return f"{dotted(place[:-1])} holds a value, not a section."
    known = list(section.model_fields)
    near = difflib.get_close_matches(place[-1], known, n=1, cutoff=0.5)
    if near:
        return f"did you mean {dotted((*place[:-1], near[0]))}?"
    return f"{dotted(place[:-1]) or 'the top level'} has {', '.join(known)}."


def _bare(annotation: Any) -> Any:
    return annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation


def _container(annotation: Any) -> type[BaseModel] | tuple[Any, ...] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return get_args(annotation) if get_origin(annotation) is dict else None
