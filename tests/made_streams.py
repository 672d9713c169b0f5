"""Streams made by hand, event by event, for the judges of streams to be judged by."""

import copy

USAGE = {
    "input_tokens": 5,
    "output_tokens": 7,
    "total_tokens": 12,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 2},
}

RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 100,
    "completed_at": None,
    "status": "in_progress",
    "incomplete_details": None,
    "model": "m",
    "previous_response_id": None,
    "instructions": None,
    "output": [],
    "error": None,
    "tools": [],
    "tool_choice": "auto",
    "truncation": "disabled",
    "parallel_tool_calls": True,
    "text": {"format": {"type": "text"}},
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "temperature": 1.0,
    "reasoning": {"effort": None, "summary": None},
    "usage": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "store": True,
    "background": False,
    "service_tier": "default",
    "metadata": {},
    "safety_identifier": None,
    "prompt_cache_key": None,
}

TEXTS = {
    "output_text": ("response.output_text", "text", {"annotations": [], "logprobs": []}),
    "refusal": ("response.refusal", "refusal", {}),
    "reasoning_text": ("response.reasoning_text", "text", {}),
}


class Told:
    """Tells a story as events; `events` are the stream so far."""

    def __init__(self, queued=False):
        self.number = 0
        self.output = {}
        self.index = 0
        self.events = []
        self.extra = {}
        status = "queued" if queued else "in_progress"
        self.whole("response.created", status=status)
        if queued:
            self.whole("response.queued", status=status)

    def say(self, kind, **fields):
        self.events.append(copy.deepcopy({"type": kind, "sequence_number": self.number, **fields}))
        self.number += 1

    def whole(self, kind, **changes):
        output = [item for _, item in sorted(self.output.items())]
        self.say(kind, response={**RESPONSE, "output": output, **self.extra, **changes})

    def begin(self):
        self.whole("response.in_progress")
        return self

    def open(self, item):
        index = self.index
        self.index += 1
        self.say("response.output_item.added", output_index=index, item=item)
        return index

    def close(self, index, item):
        self.output[index] = item
        self.say("response.output_item.done", output_index=index, item=item)

    def opened_text(self, item_id, part_kind, text):
        """A message or reasoning item that is still open, after its deltas."""
        if part_kind == "reasoning_text":
            item = {"id": item_id, "type": "reasoning", "summary": [], "status": "in_progress"}
        else:
            item = {
                "id": item_id,
                "type": "message",
                "status": "in_progress",
                "role": "assistant",
                "content": [],
            }
        event, key, more = TEXTS[part_kind]
        place = {"item_id": item_id, "output_index": self.open(item), "content_index": 0}
        self.say("response.content_part.added", **place, part={"type": part_kind, key: "", **more})
        logprobs = {"logprobs": []} if part_kind == "output_text" else {}
        for piece in (text[:3], text[3:]):
            self.say(f"{event}.delta", **place, delta=piece, **logprobs)
        return item, place, {"type": part_kind, key: text, **more}

    def text(self, item_id, text, part_kind="output_text", status="completed"):
        item, place, part = self.opened_text(item_id, part_kind, text)
        event, key, _ = TEXTS[part_kind]
        logprobs = {"logprobs": []} if part_kind == "output_text" else {}
        self.say(f"{event}.done", **place, **{key: text}, **logprobs)
        self.say("response.content_part.done", **place, part=part)
        self.close(place["output_index"], {**item, "status": status, "content": [part]})
        return self

    def summary(self, item_id, text):
        item = {"id": item_id, "type": "reasoning", "summary": []}
        place = {"item_id": item_id, "output_index": self.open(item), "summary_index": 0}
        part = {"type": "summary_text", "text": text}
        self.say("response.reasoning_summary_part.added", **place, part={**part, "text": ""})
        self.say("response.reasoning_summary_text.delta", **place, delta=text)
        self.say("response.reasoning_summary_text.done", **place, text=text)
        self.say("response.reasoning_summary_part.done", **place, part=part)
        self.close(place["output_index"], {**item, "summary": [part], "encrypted_content": "x"})
        return self

    def calls(self, *names, arguments='{"a":1}'):
        """Function calls for the client, their arguments interleaved."""
        opened = []
        for name in names:
            item = {
                "id": f"fc_{name}",
                "type": "function_call",
                "call_id": f"call_{name}",
                "name": name,
                "arguments": "",
                "status": "in_progress",
            }
            opened.append((self.open(item), item))
        for piece in (arguments[:4], arguments[4:]):
            for index, item in opened:
                self.say(
                    "response.function_call_arguments.delta",
                    item_id=item["id"],
                    output_index=index,
                    delta=piece,
                )
        for index, item in opened:
            place = {"item_id": item["id"], "output_index": index}
            self.say("response.function_call_arguments.done", **place, name=item["name"], arguments=arguments)
            self.close(index, {**item, "arguments": arguments, "status": "completed"})
        return self

    def opened_mcp(self, *names, arguments='{"a":1}'):
        """Calls of ours that have begun and not ended."""
        opened = []
        for name in names:
            item = {
                "id": f"mcp_{name}",
                "type": "mcp_call",
                "server_label": "antiphon",
                "name": name,
                "arguments": "",
                "output": None,
                "error": None,
                "approval_request_id": None,
                "status": "in_progress",
            }
            place = {"item_id": item["id"], "output_index": self.open(item)}
            self.say("response.mcp_call.in_progress", **place)
            self.say("response.mcp_call_arguments.delta", **place, delta=arguments)
            self.say("response.mcp_call_arguments.done", **place, arguments=arguments)
            opened.append((place, {**item, "arguments": arguments}))
        return opened

    def close_mcp(self, opened, failed=False):
        place, item = opened
        if failed:
            error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "no"}]}
            ending = {"status": "failed", "error": error}
        else:
            ending = {"status": "completed", "output": "ok"}
        self.say(f"response.mcp_call.{ending['status']}", **place)
        self.close(place["output_index"], {**item, **ending})
        return self

    def strike(self, numbers=7):
        """A torn attempt was taken out: numbers jump, and the response is told as it stands."""
        self.number += numbers
        self.index = len(self.output)
        return self.begin()

    def end(self, status="completed", **changes):
        match status:
            case "completed":
                changes = {"completed_at": 101, "usage": USAGE, **changes}
            case "incomplete":
                changes = {"incomplete_details": {"reason": "max_output_tokens"}, "usage": USAGE, **changes}
            case "failed":
                error = {"code": "upstream_error", "message": "gone", "param": None}
                self.say("error", **error, error={"type": "server_error", **error})
                changes = {"error": {"code": "upstream_error", "message": "gone"}, **changes}
        terminal = "failed" if status == "cancelled" else status
        self.whole(f"response.{terminal}", status=status, **changes)
        return self.events


def text_stream():
    return Told().begin().text("msg_1", "Hello there").end()


def reasoning_stream():
    return (
        Told(queued=True)
        .begin()
        .text("rs_1", "Let me see", "reasoning_text")
        .text("msg_1", "Hello there")
        .end()
    )


def summary_stream():
    return Told().begin().summary("rs_1", "Thought a bit").text("msg_1", "I cannot", "refusal").end()


def calls_stream():
    return Told().begin().text("msg_1", "Looking it up").calls("a", "b").end()


def mcp_stream():
    told = Told().begin()
    first, second = told.opened_mcp("x", "y")
    told.say("response.mcp_call.in_progress", **first[0])  # a long call repeats itself
    told.close_mcp(second).close_mcp(first, failed=True)
    return told.text("msg_1", "Both are done").end()


def failed_stream():
    told = Told().begin().text("rs_1", "Let me see", "reasoning_text")
    told.opened_text("msg_1", "output_text", "Half an ans")
    return told.end("failed")


def incomplete_stream():
    return Told().begin().text("msg_1", "Cut off he", status="incomplete").end("incomplete")


def cancelled_stream():
    told = Told().begin()
    told.opened_mcp("x")
    return told.end("cancelled")


def cancelled_while_queued():
    return Told(queued=True).end("cancelled")


def struck_stream():
    told = Told().begin()
    (opened,) = told.opened_mcp("x")
    told.close_mcp(opened)
    return told.strike().text("msg_2", "A second attempt").end()


def torn_and_struck():
    """What a reader saw who was connected while an attempt was torn, and came back later."""
    told = Told().begin()
    (opened,) = told.opened_mcp("x")
    told.close_mcp(opened).text("rs_torn", "I wonder", "reasoning_text")
    told.opened_text("msg_torn", "output_text", "This is to")
    del told.output[1]
    return told.strike(numbers=0).text("msg_2", "A second attempt").end()


GOOD = {
    "text": text_stream,
    "reasoning": reasoning_stream,
    "summary": summary_stream,
    "calls": calls_stream,
    "mcp": mcp_stream,
    "failed": failed_stream,
    "incomplete": incomplete_stream,
    "cancelled": cancelled_stream,
    "cancelled while queued": cancelled_while_queued,
    "struck": struck_stream,
}
