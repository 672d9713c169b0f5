"""The transition: every arrow of its essay, and the budgets."""

import msgspec
import pytest

from antiphon import AppendSteps, Complete, Fail, StepDescriptor, StepKind, StepState, Usage
from antiphon.core.transition import (
    Rules,
    Spent,
    has_client_calls,
    next_action,
    server_calls,
    spent_on,
    turns_of,
)
from chains import answered, call, message, model_call, tool_call

RULES = Rules(model="m")


def ask(*chain, rules=RULES, **spent):
    counted = msgspec.structs.replace(spent_on(chain), **spent)
    return next_action(rules, chain, counted)


def places(action):
    """(kind, ordinal, call_id) of each step that is asked for."""
    assert isinstance(action, AppendSteps), action
    return [(s.kind, s.ordinal, s.request_payload.get("call_id")) for s in action.steps]


def a_model_call(ordinal):
    return [(StepKind.MODEL_CALL, ordinal, None)]


def tools(*placed):
    return [(StepKind.TOOL_CALL, ordinal, call_id) for ordinal, call_id in placed]


def incomplete(reason):
    return Complete({"status": "incomplete", "incomplete_details": {"reason": reason}})


DONE = Complete({"status": "completed"})


def test_an_empty_chain_begins_with_a_model_call():
    """At ordinal 0, naming the scope's model."""
    assert ask() == AppendSteps([StepDescriptor(StepKind.MODEL_CALL, {"model": "m"}, 0)])


@pytest.mark.parametrize("state", [StepState.PENDING, StepState.PROCESSING])
def test_an_open_model_call_is_the_same_one_again(state):
    """After a takeover the same place is run, not a new one."""
    assert places(ask(model_call(0, state))) == a_model_call(0)
    chain = (answered(0, call("a")), tool_call(1, "a"), model_call(2, state))
    assert places(ask(*chain)) == a_model_call(2)


def test_a_failed_model_call_fails_the_scope():
    """With its own error; a cancelled one says so."""
    error = {"code": "upstream_error", "message": "no"}
    assert ask(model_call(0, StepState.FAILED, error=error)) == Fail(error)
    assert ask(model_call(0, StepState.CANCELED)).error["code"] == "cancelled"


def test_an_answer_without_our_calls_completes():
    """Text alone, nothing at all, or calls for the client."""
    assert ask(answered(0, message())) == DONE
    assert ask(answered(0)) == DONE
    assert ask(answered(0, message(), call("a", ours=False))) == DONE


def test_each_call_of_ours_becomes_a_tool_call_at_its_place():
    """Ordinals follow from the place of the call among ours; the client's calls take none."""
    chain = (answered(0, message(), call("a"), call("x", ours=False), call("b")),)
    assert places(ask(*chain)) == tools((1, "a"), (2, "b"))
    payload = ask(*chain).steps[0].request_payload
    assert payload["item_id"] == "fc_a"
    assert payload["server_label"] == "antiphon"
    assert payload["effect"] == "pure"


def test_after_a_crash_in_a_fan_out_only_what_has_not_ended_runs():
    """At the same places, whichever siblings have ended."""
    answer = answered(0, call("a"), call("b"), call("c"))
    assert places(ask(answer, tool_call(2, "b"))) == tools((1, "a"), (3, "c"))
    assert places(
        ask(answer, tool_call(1, "a", StepState.FAILED), tool_call(2, "b", StepState.PROCESSING))
    ) == tools((2, "b"), (3, "c"))
    assert places(ask(answer, tool_call(1, "a"), tool_call(3, "c", StepState.CANCELED))) == tools((2, "b"))


def test_results_are_paired_by_call_id_not_by_order():
    """Steps in another order than their calls: each call is still its own."""
    answer = answered(0, call("a"), call("b"))
    assert places(ask(answer, tool_call(2, "b"), tool_call(1, "a", StepState.PENDING))) == tools((1, "a"))


def test_when_all_have_ended_the_model_is_asked_again():
    """A failed or cancelled tool is an end too; the next model call stands after all places of the turn."""
    for state in (StepState.COMPLETED, StepState.FAILED, StepState.CANCELED):
        chain = (answered(0, call("a"), call("b")), tool_call(1, "a", state), tool_call(2, "b"))
        assert places(ask(*chain)) == a_model_call(3)


def test_with_calls_for_the_client_ours_run_first():
    """Then the response completes with the client's calls open."""
    answer = answered(0, call("x", ours=False), call("a"))
    assert places(ask(answer)) == tools((1, "a"))
    assert ask(answer, tool_call(1, "a")) == DONE


def test_only_the_last_turn_counts():
    """Earlier turns are over, whatever is in them."""
    chain = (
        answered(0, call("a"), call("b")),
        tool_call(1, "a"),
        tool_call(2, "b"),
        answered(3, call("c")),
        tool_call(4, "c"),
        answered(5, message()),
    )
    assert ask(*chain) == DONE
    assert [len(turn.tool_calls) for turn in turns_of(chain)] == [2, 1, 0]
    assert places(ask(*chain[:4])) == tools((4, "c"))


@pytest.mark.parametrize(
    ("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_a_cut_answer_ends_incomplete(finish, reason):
    """Calls of a cut answer are never run: their arguments may be cut as well."""
    assert ask(answered(0, message(), finish=finish)) == incomplete(reason)
    assert ask(answered(0, call("a"), call("x", ours=False), finish=finish)) == incomplete(reason)


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "function_call", "something_new"])
def test_other_finish_reasons_do_not_matter(finish):
    """What an upstream calls the end does not decide what comes next; the calls do."""
    assert ask(answered(0, message(), finish=finish)) == DONE
    assert places(ask(answered(0, call("a"), finish=finish))) == tools((1, "a"))


def test_the_budget_of_tool_calls_is_kept():
    """The first calls run, the rest is refused; when all that ran have ended, the response is incomplete."""
    rules = Rules(model="m", max_tool_calls=2)
    answer = answered(0, call("a"), call("b"), call("c"))
    assert places(ask(answer, rules=rules)) == tools((1, "a"), (2, "b"))
    assert ask(answer, tool_call(1, "a"), tool_call(2, "b"), rules=rules) == incomplete("max_tool_calls")
    assert places(ask(answer, tool_call(1, "a"), tool_call(2, "b", StepState.PENDING), rules=rules)) == tools(
        (2, "b")
    )


def test_the_budget_of_tool_calls_counts_all_rounds():
    """What earlier rounds and other scopes used is gone; using it up exactly is no reason to stop."""
    rules = Rules(model="m", max_tool_calls=2)
    first = (answered(0, call("a")), tool_call(1, "a"))
    assert places(ask(*first, answered(2, call("b"), call("c")), rules=rules)) == tools((3, "b"))
    exact = (*first, answered(2, call("b")), tool_call(3, "b"))
    assert places(ask(*exact, rules=rules)) == a_model_call(4)
    assert ask(*exact, answered(4, message()), rules=rules) == DONE
    assert ask(answered(0, call("a")), rules=rules, tool_calls=2) == incomplete("max_tool_calls")


def test_the_budget_of_output_tokens_is_kept():
    """Once spent no further model call starts; an answer that needs none completes all the same."""
    rules = Rules(model="m", max_output_tokens=20)
    chain = (answered(0, call("a"), output_tokens=20), tool_call(1, "a"))
    assert ask(*chain, rules=rules) == incomplete("max_output_tokens")
    assert ask(answered(0, message(), output_tokens=20), rules=rules) == DONE
    less = (answered(0, call("a"), output_tokens=19), tool_call(1, "a"))
    assert places(ask(*less, rules=rules)) == a_model_call(2)


def test_when_the_time_is_up_no_new_step_starts():
    """Neither a tool nor a model call; what has been said and needs nothing more completes."""
    assert ask(answered(0, call("a")), out_of_time=True) == incomplete("max_wall_time")
    assert ask(answered(0, call("a")), tool_call(1, "a"), out_of_time=True) == incomplete("max_wall_time")
    assert ask(answered(0, message()), out_of_time=True) == DONE


def test_spending_is_read_off_the_chain():
    """Tool calls of any state, usage of completed model calls; an upstream that does not count costs nothing."""
    uncounted = answered(3)
    uncounted.response_payload["usage"] = None
    chain = (
        answered(0, call("a"), call("b"), output_tokens=7),
        tool_call(1, "a", StepState.PENDING),
        tool_call(2, "b", StepState.FAILED),
        uncounted,
        model_call(4, StepState.FAILED, error={}),
    )
    assert spent_on(chain) == Spent(
        tool_calls=2, usage=Usage(input_tokens=1, output_tokens=7, total_tokens=8)
    )
    assert spent_on(()) == Spent()


def test_whose_a_call_is():
    """A label makes it ours."""
    answer = answered(0, message(), call("a"), call("x", ours=False))
    assert [c["call_id"] for c in server_calls(answer)] == ["a"]
    assert has_client_calls(answer)
    assert not has_client_calls(answered(0, call("a")))
    assert server_calls(model_call(0)) == []
