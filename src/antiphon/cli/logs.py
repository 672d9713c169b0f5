"""The log on stderr: one line per event, for people on a terminal, as JSON elsewhere."""

import logging
import sys

import structlog

from antiphon.cli.settings import LogSettings

_CUT_ON_PURPOSE = "ASGI callable returned without completing response."


def configure_logs(settings: LogSettings) -> None:
    """Send what all loggers of the process are told to stderr, in one form."""
    before: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_rendering(settings.format),
            ],
            foreign_pre_chain=before,
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.level.upper())
    for name in ("uvicorn", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_news)


def _rendering(form: str) -> list[structlog.typing.Processor]:
    if form == "console" or (form == "auto" and sys.stderr.isatty()):
        # Plain tracebacks: the pretty ones show local variables, and those may hold secrets.
        plain = structlog.dev.plain_traceback
        return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _is_news(record: logging.LogRecord) -> bool:
    """False for a stream that the server cut itself, so that its reader comes back with the cursor."""
    return record.getMessage() != _CUT_ON_PURPOSE
