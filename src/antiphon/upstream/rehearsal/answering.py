"""What the rehearsal model says. It follows rules; it does not think, and says so.

- The last message is the user's and names tools that are offered: it calls them, all in one turn.
- Results of tools stand last: it quotes them.
- Otherwise it talks about the prompt, and mentions which turn of the conversation this is.
- `tool_choice`, `max_tokens` and `response_format` are respected.
- Marks in the prompt: `[pace=0.2]` seconds between words, `[words=200]` for long answers.

No two answers have the same words, even to the same request: a torn answer that is given again can
then be told from the first.
"""

import itertools
import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from antiphon.upstream.rehearsal.arguments import NamedCall, call_of, calls_named_in
from antiphon.upstream.rehearsal.fitting import fitting_value

LABEL = "[rehearsal]"
MAX_WORDS = 20_000

_OPENINGS = ("Well then.", "Let us see.", "Right.", "Good.", "Very well.", "Here we go.", "As rehearsed.")
_CLOSINGS = (
    "No language model was asked.",
    "These are words from a rulebook.",
    "A real model would say more.",
    "This is a stand-in speaking.",
    "Nobody thought about this.",
)
_FILLERS = (
    "and",
    "so",
    "the",
    "words",
    "go",
    "on",
    "one",
    "by",
    "until",
    "there",
    "are",
    "enough",
    "of",
    "them",
)
_MARK = re.compile(r"\[(pace|words)=(\d+(?:\.\d+)?)\]")
_QUOTED_CHARACTERS = 600

_attempts = itertools.count(1)


class Reply(msgspec.Struct, frozen=True):
    """One answer: its words or its calls, why it ends, and how fast its words come."""

    text: str | None
    calls: tuple[NamedCall, ...]
    finish_reason: str
    pace_s: float
    prompt_words: int

    @property
    def pieces(self) -> list[str]:
        """The text word by word, each with the blank before it."""
        return re.findall(r"\s*\S+|\s+$", self.text or "")

    @property
    def answer_words(self) -> int:
        """How much was said, calls included."""
        return len(self.pieces) + sum(_word_count(call.name, call.arguments) for call in self.calls)


class Rehearsal:
    """The rulebook. `pace_s` is the time between two words, `models` the names it answers to."""

    def __init__(self, pace_s: float = 0.03, *, models: Sequence[str] = ("rehearsal",)) -> None:
        self.pace_s = pace_s
        self.models = tuple(models)

    def reply(self, body: Mapping[str, Any]) -> Reply:
        """The answer to a chat-completions request that has been checked."""
        messages: list[Mapping[str, Any]] = body["messages"]
        prompt = _prompt(messages)
        marks = {name: float(value) for name, value in _MARK.findall(prompt)}
        calls = _calls(body, messages, _MARK.sub("", prompt))
        text = None if calls else self._text(body, messages, prompt, marks)
        finish_reason = "tool_calls" if calls else "stop"
        most = body.get("max_completion_tokens") or body.get("max_tokens")
        if text is not None and most and len(text.split()) > most:
            text, finish_reason = _first_words(text, int(most)), "length"
        return Reply(
            text,
            tuple(calls),
            finish_reason,
            marks.get("pace", self.pace_s),
            sum(_word_count(text_of(message.get("content"))) for message in messages),
        )

    def _text(
        self,
        body: Mapping[str, Any],
        messages: Sequence[Mapping[str, Any]],
        prompt: str,
        marks: Mapping[str, float],
    ) -> str:
        attempt = next(_attempts)
        match body.get("response_format"):
            case {"type": "json_schema", "json_schema": {"schema": schema}}:
                return json.dumps(fitting_value(schema, f"rehearsal {attempt}"))
            case {"type": "json_object"}:
                return json.dumps({"rehearsal": attempt, "prompt": _quoted(prompt)})
        # Not a secret: only to have other words each time.
        opening, closing = random.choice(_OPENINGS), random.choice(_CLOSINGS)  # noqa: S311
        text = f"{LABEL} {opening} {_substance(messages, prompt)} {closing} (attempt {attempt})"
        missing = min(int(marks.get("words", 0)), MAX_WORDS) - len(text.split())
        if missing > 0:
            text += " " + " ".join(itertools.islice(itertools.cycle(_FILLERS), missing))
        return text


def text_of(content: Any) -> str:
    """The words of a message's content, string or parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return " ".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))


def _prompt(messages: Sequence[Mapping[str, Any]]) -> str:
    said = [text_of(message.get("content")) for message in messages if message.get("role") == "user"]
    return said[-1] if said else ""


def _calls(body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], prompt: str) -> list[NamedCall]:
    tools = [tool["function"] for tool in body.get("tools") or () if tool.get("type") == "function"]
    if not tools or not messages or messages[-1].get("role") != "user":
        return []
    calls = calls_named_in(prompt, tools)
    match body.get("tool_choice"):
        case "none":
            calls = []
        case "required":
            calls = calls or [call_of(tools[0], prompt)]
        case {"function": {"name": str() as name}}:
            chosen = next((tool for tool in tools if tool["name"] == name), None)
            calls = [call for call in calls if call.name == name]
            if not calls and chosen is not None:
                calls = [call_of(chosen, prompt)]
    return calls[:1] if body.get("parallel_tool_calls") is False else calls


def _substance(messages: Sequence[Mapping[str, Any]], prompt: str) -> str:
    """What there is to say: the results of this turn's tools, or the prompt."""
    results: list[str] = []
    names: dict[str, str] = {}
    for message in messages:
        if message.get("role") == "user":
            results = []
        names.update({call["id"]: call["function"]["name"] for call in message.get("tool_calls") or ()})
        if message.get("role") == "tool":
            name = names.get(str(message.get("tool_call_id")), "a tool")
            results.append(f"{name} says: {_quoted(text_of(message.get('content')))}")
    turn = sum(1 for message in messages if message.get("role") == "user")
    if results:
        return f"In turn {turn}, " + " | ".join(results) + "."
    pictures = sum(
        1
        for message in messages[-1:]
        for part in message.get("content") or ()
        if isinstance(part, Mapping) and part.get("type") not in (None, "text")
    )
    seen = f" with {pictures} attachment(s)" if pictures else ""
    if not prompt:
        return f"This is turn {turn}, and nothing was said{seen}."
    return f'This is turn {turn} of our talk. You said{seen}: "{_quoted(_MARK.sub("", prompt).strip())}".'


def _quoted(text: str) -> str:
    return text if len(text) <= _QUOTED_CHARACTERS else text[:_QUOTED_CHARACTERS] + "…"


def _first_words(text: str, count: int) -> str:
    return "".join(re.findall(r"\s*\S+", text)[:count])


def _word_count(*texts: str) -> int:
    return sum(len(text.split()) for text in texts)
