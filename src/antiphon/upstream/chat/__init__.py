"""The client of chat-completions servers.

`messages`, `parts` and `request` translate what is asked, `chunks`, `calls` and `answer` what comes back,
`failures` what goes wrong: all pure. `exchange` is one HTTP exchange with its deadlines, `client` ties
them together with retries.
May import `core` and `domain`. Begin with `client`.
"""

from antiphon.upstream.chat.client import ChatCompletionsClient, Timeouts

__all__ = ["ChatCompletionsClient", "Timeouts"]
