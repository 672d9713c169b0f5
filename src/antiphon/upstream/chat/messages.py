"""A conversation of Responses items as chat messages.

Pure and deterministic. The messages of a longer conversation begin with those of a shorter one that
ends at a turn's border, byte for byte when encoded, so that the upstream's prompt cache holds.

What one model answer produced (text, calls) becomes one assistant message again. Items of ours tell by
the stem of their id which answer they came from; two stems are two answers. Items from elsewhere have
no stem: calls that stand side by side are taken as one answer, with the text directly before them.
An item with a stem never joins one without: a new turn's input could otherwise change the turn before.
A call that a client sent back without its id still has our `call_id`, and joins the answer with that stem.

A chat server demands that the results of an assistant message's calls follow it directly. They are
moved there, in the order in which they came, whatever stands between in the input. A call that was cut
off (`incomplete`) and never answered is left out: half a call cannot be told.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from antiphon.domain.errors import InvalidRequestError
from antiphon.domain.ids import call_id_of, stem_of
from antiphon.upstream.chat.parts import ChatContent, chat_content

DeveloperRole = Literal["system", "developer"]
ChatMessage = dict[str, Any]

_encode = msgspec.json.Encoder(order="deterministic").encode


def chat_messages(
    items: Iterable[Mapping[str, Any]],
    *,
    instructions: str | None = None,
    developer_role: DeveloperRole = "system",
) -> list[ChatMessage]:
    """The chat messages for `items`, with `instructions` as the leading system message.

    With `developer_role="system"` the instructions and the system and developer messages at the very
    front become one system message, since many templates allow only one.

    Raises `InvalidRequestError` for references that were not resolved, results without their call,
    and content that a chat message cannot carry.
    """
    rendering = _Rendering(developer_role)
    if instructions:
        rendering.add_plain("system", instructions)
    for item in items:
        rendering.add(item)
    return rendering.messages()


class _Answer:
    """One assistant message: text and calls of one model answer, and the results of its calls."""

    __slots__ = ("calls", "cut_ids", "has_text", "open_ids", "results", "settled_ids", "stem", "text")

    def __init__(self, stem: str | None) -> None:
        self.stem = stem
        self.has_text = False
        self.text: ChatContent = ""
        self.calls: list[dict[str, Any]] = []
        self.results: list[ChatMessage] = []
        self.cut_ids: set[str] = set()
        self.open_ids: set[str] = set()
        self.settled_ids: set[str] = set()

    def add_text(self, content: ChatContent) -> None:
        self.text = _joined(self.text, content) if self.has_text else content
        self.has_text = True

    def add_call(self, call_id: str, name: str, arguments: str) -> None:
        self.calls.append(
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        )
        self.open_ids.add(call_id)

    def add_result(self, call_id: str, content: ChatContent) -> None:
        self.results.append({"role": "tool", "tool_call_id": call_id, "content": content})
        self.open_ids.discard(call_id)
        self.settled_ids.add(call_id)

    def messages(self) -> list[ChatMessage]:
        unanswered = self.cut_ids - self.settled_ids
        calls = [call for call in self.calls if call["id"] not in unanswered]
        if not calls and not self.has_text:
            return []
        message: ChatMessage = {"role": "assistant", "content": self.text if self.has_text else None}
        if calls:
            message["tool_calls"] = calls
        return [message, *self.results]


class _Rendering:
    """What has been rendered so far, and the answer that the next item may still belong to."""

    def __init__(self, developer_role: DeveloperRole) -> None:
        self._developer_role = developer_role
        self._parts: list[ChatMessage | _Answer] = []
        self._current: _Answer | None = None

    def messages(self) -> list[ChatMessage]:
        messages: list[ChatMessage] = []
        for part in self._parts:
            if isinstance(part, _Answer):
                messages.extend(part.messages())
            else:
                messages.append(part)
        return messages

    def add(self, item: Mapping[str, Any]) -> None:
        match item.get("type") or ("message" if "role" in item else None):
            case "message":
                self._add_message(item)
            case "function_call":
                self._add_call(item, str(item.get("arguments") or ""))
            case "custom_tool_call":
                self._add_call(item, _encode({"input": item.get("input") or ""}).decode())
            case "function_call_output" | "custom_tool_call_output":
                self._add_output(item)
            case "mcp_call":
                self._add_mcp_call(item)
            case "reasoning":
                self._pass_reasoning(item)
            case "compaction" if item.get("summary"):
                self.add_plain("user", f"Summary of the conversation so far:\n{_summary(item)}")
            case "item_reference":
                raise InvalidRequestError(
                    f"Item reference {item.get('id')!r} could not be resolved.",
                    param="input",
                    code="item_reference_not_found",
                )
            case _:
                pass

    def add_plain(self, role: str, content: ChatContent) -> None:
        """A message that is no model's: it ends the answer before it."""
        self._current = None
        if role == "developer":
            role = self._developer_role
        parts = self._parts
        if self._developer_role == "system" and role == "system" and len(parts) == 1:
            first = parts[0]
            if (
                isinstance(first, dict)
                and first["role"] == "system"
                and isinstance(first["content"], str)
                and isinstance(content, str)
            ):
                parts[0] = {"role": "system", "content": f"{first['content']}\n\n{content}"}
                return
        parts.append({"role": role, "content": content})

    def _add_message(self, item: Mapping[str, Any]) -> None:
        match item.get("role"):
            case "assistant":
                stem = _stem(item)
                answer = self._current
                if answer is None or stem is None or answer.stem != stem:
                    answer = self._begin(stem)
                answer.add_text(chat_content(item.get("content"), joiner=""))
            case "user" | "system" | "developer" as role:
                self.add_plain(role, chat_content(item.get("content")))
            case role:
                raise InvalidRequestError(f"Unknown role {role!r} in an input message.", param="input")

    def _add_call(self, item: Mapping[str, Any], arguments: str) -> None:
        call_id = item.get("call_id") or item.get("id")
        name = item.get("name")
        if not isinstance(call_id, str) or not isinstance(name, str):
            raise InvalidRequestError("A function call needs a call_id and a name.", param="input")
        answer = self._calling(_stem(item) or self._stem_of_call(call_id))
        answer.add_call(call_id, name, arguments or "{}")
        if item.get("status") == "incomplete":
            answer.cut_ids.add(call_id)

    def _add_mcp_call(self, item: Mapping[str, Any]) -> None:
        answer = self._calling(_stem(item))
        call_id = call_id_of(str(item.get("id") or f"mcp_{len(self._parts)}x{len(answer.calls)}"))
        answer.add_call(call_id, str(item.get("name") or ""), str(item.get("arguments") or "{}"))
        answer.add_result(call_id, _mcp_result(item))

    def _add_output(self, item: Mapping[str, Any]) -> None:
        call_id = item.get("call_id")
        settled = False
        for part in reversed(self._parts):
            if not isinstance(part, _Answer):
                continue
            if call_id in part.open_ids:
                part.add_result(str(call_id), chat_content(item.get("output")))
                if part is self._current and part.stem is None:
                    self._current = None
                return
            settled = settled or call_id in part.settled_ids
        if not settled:
            raise InvalidRequestError(
                f"No tool call found for function call output with call_id {call_id}.", param="input"
            )

    def _pass_reasoning(self, item: Mapping[str, Any]) -> None:
        """Reasoning is never sent back, but it marks where another answer begins."""
        if self._current is not None and (_stem(item) is None or _stem(item) != self._current.stem):
            self._current = None

    def _calling(self, stem: str | None) -> _Answer:
        answer = self._current
        return answer if answer is not None and answer.stem == stem else self._begin(stem)

    def _stem_of_call(self, call_id: str) -> str | None:
        """The current answer's stem, when a call of ours that lost its item id belongs to that answer."""
        stem = None if self._current is None else self._current.stem
        return stem if stem is not None and stem_of(call_id) == stem else None

    def _begin(self, stem: str | None) -> _Answer:
        answer = _Answer(stem)
        self._parts.append(answer)
        self._current = answer
        return answer


def _stem(item: Mapping[str, Any]) -> str | None:
    item_id = item.get("id")
    return stem_of(item_id) if isinstance(item_id, str) else None


def _joined(first: ChatContent, second: ChatContent) -> ChatContent:
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    return [*_as_parts(first), *_as_parts(second)]


def _as_parts(content: ChatContent) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _mcp_result(item: Mapping[str, Any]) -> ChatContent:
    """The output of a call that we ran, or what went wrong with it."""
    error = item.get("error")
    match error:
        case None:
            return chat_content(item.get("output"))
        case {"content": list() as content} if content:
            return chat_content(content)
        case {"message": str() as message}:
            return message
        case _:
            return chat_content(error)


def _summary(item: Mapping[str, Any]) -> str:
    content = chat_content(item.get("summary"))
    return content if isinstance(content, str) else _encode(content).decode()
