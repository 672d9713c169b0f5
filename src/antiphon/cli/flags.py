"""The flags that change the configuration: the same for `serve`, `doctor` and `config show`.

Each wins over the environment, and that over the configuration file.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Flags:
    """What the command line says; None and empty say nothing."""

    upstream_url: Annotated[str | None, Parameter(parse=False)] = None
    config: Annotated[
        Path | None, Parameter(help="The configuration file; by default ./antiphon.yaml when it exists.")
    ] = None
    host: Annotated[str | None, Parameter(help="The address to listen on.")] = None
    port: Annotated[int | None, Parameter(help="The port; 0 picks a free one and prints it.")] = None
    store: Annotated[str | None, Parameter(help="sqlite:///FILE or memory:")] = None
    tools: Annotated[list[str], Parameter(help="FILE.py, a module or module:name; may be repeated.")] = field(
        default_factory=list
    )
    api_key_file: Annotated[
        Path | None, Parameter(help="A file with the keys that clients must send one of, one per line.")
    ] = None
    insecure: Annotated[bool, Parameter(help="Allow listening beyond this machine without API keys.")] = False
