"""How a command ends when it cannot do what it was asked: one paragraph, and an exit code.

0 is success, 1 a failure, 2 a wrong command line or configuration, 3 a missing upstream.
"""

from antiphon.domain.errors import ConfigurationError, Error

FAILED = 1
USAGE = 2
NO_UPSTREAM = 3


class CommandFailed(Exception):  # noqa: N818 - it is what happened to the command, not a kind of mistake
    """Ends the program with a message on stderr and `exit_code`."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def as_failure(error: Error) -> CommandFailed:
    """An error of the library as the end of a command: what, then what to do next."""
    message = str(error)
    if error.hint:
        message = f"{message.rstrip('.')}. {error.hint[:1].upper()}{error.hint[1:].rstrip('.')}."
    return CommandFailed(message, USAGE if isinstance(error, ConfigurationError) else FAILED)
