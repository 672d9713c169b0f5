"""A scripted turn as chat-completions chunks, or as one body, the way model servers write them."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from antiphon.testing.scripts import ScriptedCall, Turn

JSONObject = dict[str, Any]

_PIECE = 7


def chunks_of(turn: Turn, *, completion_id: str, model: str, preface: str) -> Iterator[JSONObject]:
    """The chunks of a streamed answer, without the usage. `preface` opens the text of a varied turn."""
    base = {"id": completion_id, "object": "chat.completion.chunk", "created": 1, "model": model}

    def chunk(delta: JSONObject, finish_reason: str | None = None) -> JSONObject:
        return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}

    yield chunk({"role": "assistant", "content": ""})
    for key, text in _texts(turn, preface).items():
        for word in _words(text):
            yield chunk({key: word})
    for pieces in _call_pieces(turn, completion_id):
        yield chunk({"tool_calls": [pieces]})
    yield chunk({}, turn.ends_with)


def usage_chunk(usage: JSONObject, *, completion_id: str, model: str) -> JSONObject:
    """The last chunk, which counts the tokens."""
    return {
        "id": completion_id,
        "object": "chat.completion.chunk",
        "created": 1,
        "model": model,
        "choices": [],
        "usage": usage,
    }


def body_of(turn: Turn, usage: JSONObject, *, completion_id: str, model: str, preface: str) -> JSONObject:
    """The answer in one piece."""
    message: JSONObject = {"role": "assistant", "content": None, **_texts(turn, preface)}
    if turn.calls:
        message["tool_calls"] = [_whole_call(call, i, completion_id) for i, call in enumerate(turn.calls)]
    choice = {"index": 0, "message": message, "finish_reason": turn.ends_with}
    return {
        "id": completion_id,
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [choice],
        "usage": usage,
    }


def _texts(turn: Turn, preface: str) -> dict[str, str]:
    keyed = {"reasoning_content": turn.reasoning, "content": turn.text, "refusal": turn.refusal}
    return {key: f"{preface}{text}" if turn.varied else text for key, text in keyed.items() if text}


def _words(text: str) -> list[str]:
    words = text.split(" ")
    return [word + " " for word in words[:-1]] + words[-1:]


def _whole_call(call: ScriptedCall, index: int, completion_id: str) -> JSONObject:
    function = {"name": call.name, "arguments": call.arguments_text}
    return {"id": f"call_{completion_id}_{index}", "type": "function", "function": function}


def _call_pieces(turn: Turn, completion_id: str) -> Iterator[JSONObject]:
    each = [list(_pieces(call, index, completion_id)) for index, call in enumerate(turn.calls)]
    if not turn.interleaved:
        for pieces in each:
            yield from pieces
        return
    for together in zip_longest(*each):
        yield from (piece for piece in together if piece is not None)


def _pieces(call: ScriptedCall, index: int, completion_id: str) -> Iterator[JSONObject]:
    opening = _whole_call(call, index, completion_id)
    opening["function"] = {"name": call.name, "arguments": ""}
    yield {"index": index, **opening}
    text = call.arguments_text
    for start in range(0, len(text), _PIECE):
        yield {"index": index, "function": {"arguments": text[start : start + _PIECE]}}
