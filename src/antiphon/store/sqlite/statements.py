"""The statements of `queries.sql`, by name, and the schema.

A block begins with `-- name: <name>`; everything up to the next one is its statement. Texts are constant,
so that the connection prepares each of them once.
"""

from importlib.resources import files

SCHEMA_VERSION = 1

_MARK = "-- name: "


def _named(text: str) -> dict[str, str]:
    blocks = (block.partition("\n") for block in text.split(_MARK)[1:])
    return {name.strip(): body.strip() for name, _, body in blocks}


SQL = _named(files(__package__).joinpath("queries.sql").read_text("utf-8"))
SCHEMA = files(__package__).joinpath("schema.sql").read_text("utf-8")
