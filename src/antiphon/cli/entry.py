"""The program `antiphon`.

`--version` is answered before anything heavy is imported. What a command cannot do ends it with one
paragraph on stderr and its exit code (`failure`), never with a traceback.
"""

import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    if sys.argv[1:] == ["--version"]:
        _print_version()
        return
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; the exit code."""
    from cyclopts import CycloptsError

    from antiphon.cli.app import app
    from antiphon.cli.failure import FAILED, USAGE, CommandFailed, as_failure
    from antiphon.domain.errors import Error

    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        return _complain(f"{error} See: antiphon {_command_of(arguments)}--help", USAGE)
    except CommandFailed as error:
        return _complain(str(error), error.exit_code)
    except Error as error:
        failure = as_failure(error)
        return _complain(str(failure), failure.exit_code)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has left; there is nobody to tell
        return FAILED
    except KeyboardInterrupt:
        return 130
    return 0


def _print_version() -> None:
    from antiphon import __version__

    print(f"antiphon {__version__}")


def _command_of(arguments: list[str]) -> str:
    from antiphon.cli.app import COMMANDS

    return f"{arguments[0]} " if arguments and arguments[0] in COMMANDS else ""


def _complain(message: str, exit_code: int) -> int:
    if message:
        print(f"antiphon: {message}", file=sys.stderr)
    return exit_code
