"""The judge of a response's whole life: what everybody saw of it, held against each other.

A `ResponseHistory` is the evidence of one response whose server may have died many times: the journal after
each death, the tools' own ledger, the requests that the model got, what each reader saw over all its
connections, replays, and the final JSON. `check_history` says in words what does not agree:

    steps       one per place; a result, once written, never changes; nothing is left open
    effects     `once` at most one raw call, others one key; no more calls than attempts
    model       no answered call is asked again; a repeated one is asked the same; usage counted once
    log         a number stands for one event for ever; struck events were a torn attempt's
    readers     valid streams; nothing was told that was not written; one end
    outcome     replay = fold = terminal event = GET; nothing of a torn answer

The rules that look at steps are in `step_rules`, those that look at events in `log_rules`.
"""

from collections.abc import Iterator

from antiphon.testing import log_rules, step_rules
from antiphon.testing.evidence import ResponseHistory

__all__ = ["ResponseHistory", "check_history"]


def check_history(history: ResponseHistory) -> list[str]:
    """Everything that does not hold; empty when all does."""
    found = [*_check_end(history), *step_rules.check(history), *log_rules.check(history)]
    return [f"{history.response_id}: {complaint}" for complaint in found]


def _check_end(history: ResponseHistory) -> Iterator[str]:
    if history.body["status"] != history.status:
        yield f"it is {history.body['status']} ({history.body.get('error')}), not {history.status}"
    if history.final.state != "ended":
        yield f"its run is {history.final.state}"
    fences = [record.fence for record in history.records]
    if fences != sorted(fences):
        yield f"the fence fell: {fences}"
