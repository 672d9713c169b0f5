"""What a fake model says: a pure function of the messages it was sent.

A `Script` looks at a request and gives a `Turn`. Because it depends on nothing else, a server that was
killed and asks again, or a fake upstream that was started anew, is given the same kind of answer. Only
the words differ from attempt to attempt (`FakeUpstream` adds them), so that a torn answer that was
mixed into a later one cannot hide.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

Arguments = Callable[["ChatRequest", int, int], dict[str, Any]]

_LONGEST_RUN_NAME = 64


class ScriptedCall(msgspec.Struct, frozen=True):
    """A tool call in an answer. A `str` as `arguments` is sent as it is, valid JSON or not."""

    name: str
    arguments: dict[str, Any] | str = msgspec.field(default_factory=dict)

    @property
    def arguments_text(self) -> str:
        """The arguments as the model writes them."""
        return (
            self.arguments
            if isinstance(self.arguments, str)
            else msgspec.json.encode(self.arguments).decode()
        )


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. `finish_reason` None: `tool_calls` with calls, else `stop`.

    With `varied` each attempt's text and reasoning begin with words of their own. `interleaved` sends
    the pieces of parallel calls in turns instead of one call after the other.
    """

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    finish_reason: str | None = None
    varied: bool = True
    interleaved: bool = False

    @property
    def ends_with(self) -> str:
        """The finish reason that is sent."""
        return self.finish_reason or ("tool_calls" if self.calls else "stop")


class ChatRequest:
    """A chat-completions request, as a script sees it."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.body = body
        self.messages: list[Mapping[str, Any]] = list(body.get("messages") or ())

    @property
    def turn(self) -> int:
        """How many answers were given since the last user message."""
        return sum(1 for message in self._since_user() if message.get("role") == "assistant")

    @property
    def tool_results(self) -> int:
        """How many tool results came since the last user message."""
        return sum(1 for message in self._since_user() if message.get("role") == "tool")

    @property
    def prompt(self) -> str:
        """The text of the last user message."""
        for message in reversed(self.messages):
            if message.get("role") == "user":
                return _text(message.get("content"))
        return ""

    def _since_user(self) -> Sequence[Mapping[str, Any]]:
        for back, message in enumerate(reversed(self.messages)):
            if message.get("role") == "user":
                return self.messages[len(self.messages) - back :]
        return self.messages


Script = Callable[[ChatRequest], Turn]


def answer_script(text: str = "The answer is forty-two.", **turn: Any) -> Script:
    """Always the same answer, whatever was asked."""
    made = Turn(text=text, **turn)
    return lambda _request: made


def turns_script(turns: Sequence[Turn]) -> Script:
    """These answers, one after the other; the last of them again when asked more often."""
    return lambda request: turns[min(request.turn, len(turns) - 1)]


def own_arguments(request: ChatRequest, turn: int, index: int) -> dict[str, Any]:
    """Arguments that no other call has: the prompt that began the run, the turn, the place in it."""
    return {"run": request.prompt[:_LONGEST_RUN_NAME], "turn": turn, "index": index}


def loop_script(
    model_calls: int = 6,
    tools: Sequence[str] = ("effect",),
    per_turn: int = 3,
    *,
    text: str = "All steps are done.",
    arguments: Arguments = own_arguments,
    interleaved: bool = False,
) -> Script:
    """An agent that asks for `per_turn` parallel calls in each of its turns but the last, then answers.

    Tools are taken in rotation. Called by a tool `def effect(run: str, turn: int, index: int)`.
    """

    def script(request: ChatRequest) -> Turn:
        turn = request.turn
        if turn >= model_calls - 1:
            return Turn(text=text)
        calls = tuple(
            ScriptedCall(tools[(turn * per_turn + index) % len(tools)], arguments(request, turn, index))
            for index in range(per_turn)
        )
        return Turn(text=f"Turn {turn}.", calls=calls, interleaved=interleaved)

    return script


def script_from(description: Mapping[str, Any]) -> Script:
    """A script from JSON: `{"kind": "loop" | "turns" | "answer", ...}` with the options of that function."""
    options = {key: value for key, value in description.items() if key != "kind"}
    match description.get("kind", "answer"):
        case "loop":
            return loop_script(**options)
        case "turns":
            return turns_script(msgspec.convert(options["turns"], list[Turn]))
        case "answer":
            return answer_script(**options)
        case other:
            message = f"a script is of kind loop, turns or answer, not {other!r}"
            raise ValueError(message)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or () if isinstance(part, Mapping))
