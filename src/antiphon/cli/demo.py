"""`antiphon demo`: see it once, without a model and without setting anything up."""

from antiphon.cli.failure import CommandFailed


def demo() -> None:
    """Watch a response survive the kill of its server; needs no model, and takes half a minute at most.

    Exits 0 when everything it promises was proven from the server's log and the tools' own ledger.
    """
    from antiphon.demo.scenario import run_demo

    exit_code = run_demo()
    if exit_code != 0:
        raise CommandFailed("", exit_code)
