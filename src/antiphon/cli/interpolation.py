"""`${env.NAME}` and `${env.NAME:=default}` inside the strings of a configuration file.

The default is used when the variable is unset or empty. `$${` stands for a literal `${`. Any other
`${…}` is refused: a reference that is sent as it stands would be a key or an address that nobody meant.
"""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}?")
_NAME = re.compile(r"env\.([A-Za-z_][A-Za-z0-9_]*)(?::=(.*))?", re.DOTALL)


class InterpolationError(ValueError):
    """A reference that cannot be replaced; the message says which and why."""


def interpolate(text: str, environ: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The text with its references replaced, and the names of the variables that were used."""
    used: list[str] = []

    def replacement(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        reference = _NAME.fullmatch(match[1])
        if reference is None or not match[0].endswith("}"):
            raise InterpolationError(
                f"{match[0]!r} is not a reference; write ${{env.NAME}} or ${{env.NAME:=default}}, "
                "or $${ for a literal ${"
            )
        name, default = reference[1], reference[2]
        value = environ.get(name)
        if default is not None and not value:
            return default
        if value is None:
            raise InterpolationError(
                f"the environment variable {name} is not set; set it, or give a default: ${{env.{name}:=…}}"
            )
        used.append(name)
        return value

    return _REFERENCE.sub(replacement, text), tuple(used)
