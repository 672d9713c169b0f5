"""`antiphon serve`: the server, one process, until it is told to stop."""

from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter

from antiphon.cli.flags import Flags


def serve(
    upstream_url: Annotated[
        str | None, Parameter(help="A chat-completions server, such as http://localhost:8000/v1.")
    ] = None,
    /,
    *,
    flags: Flags | None = None,
) -> None:
    """Serve the Responses API in front of a model server.

    The upstream is an argument, `upstreams:` in antiphon.yaml, ANTIPHON_UPSTREAM or OPENAI_BASE_URL.
    """
    from antiphon.cli.checks import check
    from antiphon.cli.loading import load
    from antiphon.cli.process import run_server
    from antiphon.cli.wiring import tools_of

    configuration = load(replace(flags or Flags(), upstream_url=upstream_url))
    check(configuration)
    run_server(configuration, tools_of(configuration))
