"""What must hold of a response's steps, and of what tools and model saw of them. See `history`."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from antiphon.domain.steps import StepKind, StepState, step_id_at
from antiphon.engine.failures import IN_DOUBT
from antiphon.testing.effect_ledger import LedgerCall
from antiphon.testing.evidence import ResponseHistory
from antiphon.testing.fake_upstream import RecordedRequest
from antiphon.testing.scripts import ChatRequest
from antiphon.testing.snapshots import StepRecord

_ATTEMPT = re.compile(r"\[attempt (\d+) [0-9a-f]{6}\]")


def check(history: ResponseHistory) -> Iterator[str]:
    """Everything that is wrong with the steps."""
    yield from _check_places(history.final.steps)
    yield from _check_results_stay(history)
    yield from _check_pairing(history.final.steps)
    yield from _check_effects(history)
    yield from _check_in_doubt(history)
    yield from _check_model_calls(history)
    yield from _check_usage(history)


def _check_places(steps: Sequence[StepRecord]) -> Iterator[str]:
    places = [(step.parent, step.ordinal) for step in steps]
    for place in {place for place in places if places.count(place) > 1}:
        yield f"{places.count(place)} steps stand at {place}"
    for step in steps:
        if step.id != step_id_at(step.run_id, step.parent, step.ordinal):
            yield f"the id of step {step.id} is not that of its place"
        if not step.state.is_terminal:
            yield f"step {step.id} ({step.kind}) was left {step.state}"


def _check_results_stay(history: ResponseHistory) -> Iterator[str]:
    """From one snapshot to the next steps only come and go on; an end is for ever."""
    known: dict[str, StepRecord] = {}
    for record in history.records:
        now = {step.id: step for step in record.steps}
        for step_id, before in known.items():
            after = now.get(step_id)
            if after is None:
                yield f"step {step_id} is gone"
            elif before.state.is_terminal and (after.state, after.result) != (before.state, before.result):
                yield f"the result of step {step_id} changed: {before.result!r} became {after.result!r}"
            elif after.attempt < before.attempt:
                yield f"the attempts at step {step_id} fell from {before.attempt} to {after.attempt}"
            elif (after.parent, after.ordinal, after.request) != (
                before.parent,
                before.ordinal,
                before.request,
            ):
                yield f"step {step_id} is not what it was"
        known = now


def _check_pairing(steps: Sequence[StepRecord]) -> Iterator[str]:
    """Each server-side call of an answer has one step, and each tool step a call."""
    asked = [
        item["call_id"]
        for step in _answered(steps)
        for item in (step.response or {})["output"]
        if item["type"] == "function_call" and "server_label" in item
    ]
    begun = [step.request["call_id"] for step in steps if step.kind is StepKind.TOOL_CALL]
    for call_id in set(asked) | set(begun):
        if (asked.count(call_id), begun.count(call_id)) not in {(1, 1), (1, 0)}:
            yield f"call {call_id}: asked for {asked.count(call_id)} times, {begun.count(call_id)} steps"


def _check_effects(history: ResponseHistory) -> Iterator[str]:
    tools = {step.id: step for step in history.final.steps if step.kind is StepKind.TOOL_CALL}
    keys_of_effect: dict[tuple[str, str], set[str]] = defaultdict(set)
    starts: dict[str, list[LedgerCall]] = defaultdict(list)
    for call in history.calls:
        if call.phase == "start":
            keys_of_effect[call.tool, repr(call.arguments)].add(call.key)
            starts[call.key].append(call)
    for (tool, arguments), keys in keys_of_effect.items():
        if len(keys) > 1:
            yield f"{tool}{arguments} was called under {len(keys)} keys: {sorted(keys)}"
    for key in starts.keys() - tools.keys():
        yield f"{starts[key][0].tool} was called under {key}, which is no step"
    for step in tools.values():
        count = len(starts[step.id])
        if step.effect == "once" and count > 1:
            yield f"the once tool {step.request['name']} was called {count} times under {step.id}"
        if count > step.attempt + 1:
            yield f"{step.request['name']} was called {count} times in {step.attempt + 1} attempts"
        if step.state is StepState.COMPLETED and count == 0:
            yield f"step {step.id} has a result, and {step.request['name']} was never called"


def _check_in_doubt(history: ResponseHistory) -> Iterator[str]:
    """What is in doubt is said so: to the client in the item, to the model in its next request."""
    items = {item["id"]: item for item in history.body["output"] if item["type"] == "mcp_call"}
    for step in history.final.steps:
        if step.error is None or step.kind is not StepKind.TOOL_CALL:
            continue
        if step.error.get("code") != "in_doubt":
            yield f"step {step.id} ({step.request['name']}) failed: {step.error}"
            continue
        if step.effect == "pure" or (step.effect != "once" and history.status == "completed"):
            yield f"step {step.id} is in doubt, and its effect is {step.effect}"
        item = items.get(step.request["item_id"])
        if item is None or item["status"] != "failed" or IN_DOUBT not in str(item["error"]):
            yield f"the client is not told of the doubt of step {step.id}: {item}"
        heard = any(
            message.get("tool_call_id") == step.request["call_id"] and IN_DOUBT in str(message.get("content"))
            for request in history.requests
            for message in request.body["messages"]
        )
        if history.status == "completed" and not heard:
            yield f"the model is not told of the doubt of step {step.id}"


def _check_model_calls(history: ResponseHistory) -> Iterator[str]:
    """Requests and model steps, paired by the turn that they ask for."""
    by_turn: dict[int, list[RecordedRequest]] = defaultdict(list)
    for request in history.requests:
        by_turn[ChatRequest(request.body).turn].append(request)
    models = [step for step in history.final.steps if step.kind is StepKind.MODEL_CALL]
    if len(by_turn) > len(models):
        yield f"the model was asked for {len(by_turn)} turns, there are {len(models)} steps"
    whole: RecordedRequest | None = None
    for turn, step in enumerate(models):
        requests = by_turn[turn]
        if len(requests) > step.attempt + 1:
            yield f"turn {turn} was asked {len(requests)} times in {step.attempt + 1} attempts"
        for request in requests:
            if request.messages_raw != requests[0].messages_raw:
                yield f"turn {turn} was asked differently by request {request.number}"
            if whole is not None and not request.extends(whole):
                yield f"request {request.number} does not go on from request {whole.number}"
        whole = requests[-1] if requests else whole
    yield from _check_torn_words(history, models)


def _check_torn_words(history: ResponseHistory, models: Sequence[StepRecord]) -> Iterator[str]:
    kept = {number for step in models for number in _attempts_in(step.response)}
    shown = set(_attempts_in(history.body["output"]))
    torn = {request.number for request in history.requests} - kept
    if shown & torn:
        yield f"the output holds words of the torn attempts {sorted(shown & torn)}"
    if shown - kept - torn:
        yield f"the output holds words of foreign attempts {sorted(shown - kept - torn)}"
    if kept - shown and history.status == "completed":
        yield f"the output lacks the words of the attempts {sorted(kept - shown)}"
    for step in _answered(models):
        if len(set(_attempts_in(step.response))) > 1:
            yield f"step {step.id} mixes the attempts {sorted(set(_attempts_in(step.response)))}"
    for request in history.requests:
        if told := set(_attempts_in(request.body["messages"])) & torn:
            yield f"request {request.number} holds words of the torn attempts {sorted(told)}"


def _check_usage(history: ResponseHistory) -> Iterator[str]:
    """Counted once for each answer that was kept."""
    used = [
        (step.response or {}).get("usage") or {}
        for step in history.final.steps
        if step.kind is StepKind.MODEL_CALL and step.state is StepState.COMPLETED
    ]
    shown = history.body.get("usage") or {}
    for key in ("input_tokens", "output_tokens", "total_tokens"):
        total = sum(each.get(key, 0) for each in used)
        if shown.get(key, 0) != total:
            yield f"usage.{key} is {shown.get(key)}, the answers used {total}"
    kept = {number for step in history.final.steps for number in _attempts_in(step.response)}
    sent = sum(len(request.raw) // 4 for request in history.requests if request.number in kept)
    if shown.get("input_tokens", 0) != sent:
        yield f"usage.input_tokens is {shown.get('input_tokens')}, the model counted {sent}"


def _answered(steps: Sequence[StepRecord]) -> list[StepRecord]:
    return [s for s in steps if s.kind is StepKind.MODEL_CALL and s.state is StepState.COMPLETED]


def _attempts_in(value: Any) -> list[int]:
    """The numbers of the attempts whose words occur anywhere in a JSON value."""
    match value:
        case str():
            return [int(number) for number in _ATTEMPT.findall(value)]
        case dict():
            return [number for each in value.values() for number in _attempts_in(each)]
        case list() | tuple():
            return [number for each in value for number in _attempts_in(each)]
        case _:
            return []
