"""The log: events with fields, handed to the standard library's `logging` under `antiphon.…`.

A program that embeds Antiphon hears nothing until it configures `logging` for `antiphon`; fields come as
attributes of the record. `antiphon serve` configures them as lines of JSON, or for people. Exceptions are
logged without local variables: those may hold secrets.
"""

import logging
from typing import Any

import structlog

logging.getLogger("antiphon").addHandler(logging.NullHandler())


def get_logger(name: str) -> Any:
    """The logger of one part of Antiphon: `log.info(event, field=value)`."""
    return structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
