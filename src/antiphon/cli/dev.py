"""`antiphon dev`: serve on this machine with whatever model is at hand, and start again on every change."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from antiphon.cli.failure import USAGE, CommandFailed


def dev(
    tools: Annotated[Path | None, Parameter(help="A file with @tool functions.")] = None,
    /,
    *,
    port: Annotated[int | None, Parameter(help="The port (default 8080).")] = None,
    store: Annotated[str | None, Parameter(help="The store (default sqlite:///antiphon.db).")] = None,
) -> None:
    """Serve on this machine, and start again whenever the tools or antiphon.yaml change.

    Without a configured upstream it looks for a model server on the usual local ports, and else serves a
    rehearsal model that needs nothing.
    """
    import asyncio

    from antiphon.cli.flags import Flags
    from antiphon.cli.reloading import develop

    if tools is not None and not tools.is_file():
        raise CommandFailed(
            f"There is no file {tools}. Write one with a function under @tool, or leave it out.", USAGE
        )
    named = [] if tools is None else [str(tools)]
    asyncio.run(develop(Flags(port=port, store=store, tools=named)))
