"""Makes it happen once: the loop, the journal, claims, recovery, live fan-out.

`loop` drives a response from its chain; `journal` writes before it tells; `committer` groups the commits
of all runs; `active` is one run of this process; `recovery` mends what a dead process left open;
`engine` is the front door. May import `upstream`, `tools`, `store`, `observe`, `core`, `domain`.
Begin with `loop`, then `journal`.
"""

from antiphon.engine.engine import Engine

__all__ = ["Engine"]
