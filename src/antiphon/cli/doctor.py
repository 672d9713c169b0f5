"""`antiphon doctor`: what keeps, or would keep, a server from working."""

from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter

from antiphon.cli.failure import FAILED, CommandFailed
from antiphon.cli.flags import Flags


def doctor(
    upstream_url: Annotated[str | None, Parameter(help="The upstream to look at, as for `serve`.")] = None,
    /,
    *,
    flags: Flags | None = None,
) -> None:
    """Check the store, the upstreams, the clock and work left lying; exit 1 when something is wrong.

    Takes the flags of `serve`, and changes nothing. A store that a running server holds is judged by
    what that server says of itself.
    """
    import asyncio

    from rich.console import Console

    from antiphon.cli.examination import Finding, Verdict, examine

    marks = {Verdict.FINE: ("ok", "green"), Verdict.NOTE: ("note", "yellow"), Verdict.WRONG: ("WRONG", "red")}
    console = Console(highlight=False, markup=False, soft_wrap=True)

    def tell(finding: Finding) -> None:
        mark, colour = marks[finding.verdict]
        console.print(f"{mark:<6}", style=colour, end="")
        console.print(f"{finding.subject}: {finding.text}")

    wrong = asyncio.run(examine(replace(flags or Flags(), upstream_url=upstream_url), tell))
    if wrong:
        raise CommandFailed(f"{wrong} of these {'is' if wrong == 1 else 'are'} wrong.", FAILED)
