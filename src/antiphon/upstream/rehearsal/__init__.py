"""The rehearsal model: a chat-completions server that is no language model.

It stands in for one where none is at hand: for the first minutes with Antiphon, demonstrations and
tests. It speaks the protocol of a real server over real sockets, follows simple rules instead of
thinking, and says so in every answer (`[rehearsal] …`).

`answering` decides what is said, `arguments` and `fitting` what tools are called with, `app` speaks
HTTP, `server` runs it in this process. Begin with `answering`.
"""

from antiphon.upstream.rehearsal.answering import Rehearsal
from antiphon.upstream.rehearsal.app import create_rehearsal_app
from antiphon.upstream.rehearsal.server import RehearsalServer

__all__ = ["Rehearsal", "RehearsalServer", "create_rehearsal_app"]
