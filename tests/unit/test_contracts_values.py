"""The values of the contract: enums, moves, ids, steps, tools, interruptions, responses."""

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon import (
    ChainStep,
    CreateStepInput,
    RecordedStep,
    RequestContext,
    Response,
    ResponseStep,
    StepDescriptor,
    StepKind,
    StepState,
    ToolCall,
    ToolEffect,
    ToolKind,
    ToolResult,
    ToolSchema,
    UpstreamTarget,
    Usage,
)
from antiphon.domain.ids import attempt_stem, call_id_of, made_id, run_id_of, stem_of, time_ordered_id
from antiphon.domain.interruptions import (
    ApprovalPending,
    Custom,
    InterruptionKind,
    InterruptionPhase,
    ScheduledPause,
)
from antiphon.domain.steps import LEGAL_MOVES, short_step_id, step_id_at

ENUMS = {
    StepKind: ["model_call", "tool_call"],
    StepState: ["pending", "processing", "completed", "failed", "canceled"],
    ToolKind: ["function", "http", "mcp", "agent"],
    ToolEffect: ["pure", "idempotent", "once"],
    InterruptionPhase: ["before", "after"],
}


@pytest.mark.parametrize(("enum", "values"), ENUMS.items())
def test_enums_have_these_values_and_no_default(enum, values):
    """Each spelling parses, in Python and from JSON; anything else is an error."""
    assert [member.value for member in enum] == values
    for value in values:
        assert enum(value) == value
        assert msgspec.convert(value, enum) is enum(value)
    for unknown in ("", "unknown", values[0].upper(), f" {values[0]}", None, 0):
        with pytest.raises(ValueError, match="is not a valid"):
            enum(unknown)
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(unknown, enum)


def test_three_states_are_terminal():
    """`is_terminal` is true for what never moves again, and only for that."""
    terminal = {state for state in StepState if state.is_terminal}
    assert terminal == {StepState.COMPLETED, StepState.FAILED, StepState.CANCELED}
    assert {state for state in StepState if not LEGAL_MOVES[state]} == terminal


def test_the_legal_moves_are_these():
    """The table of the contract, move by move."""
    legal = {
        ("pending", "processing"), ("pending", "failed"), ("pending", "canceled"),
        ("processing", "completed"), ("processing", "failed"), ("processing", "canceled"),
        ("processing", "pending"),
    }  # fmt: skip
    for since, to in itertools.product(StepState, StepState):
        assert (to in LEGAL_MOVES[since]) == ((since.value, to.value) in legal), (since, to)


@settings(deadline=None)
@given(st.text(min_size=1), st.none() | st.text(min_size=1), st.integers(0, 10_000))
def test_a_place_has_one_id(request_id, parent, ordinal):
    """The same place gives the same id, other places others."""
    step_id = step_id_at(request_id, parent, ordinal)
    assert step_id == step_id_at(request_id, parent, ordinal)
    assert step_id != step_id_at(request_id, parent, ordinal + 1)
    assert step_id != step_id_at(request_id + "x", parent, ordinal)
    assert step_id != step_id_at(request_id, (parent or "") + "x", ordinal)
    assert len(short_step_id(step_id)) == 8
    assert short_step_id(step_id) in step_id


def test_ids_of_one_run_do_not_collide():
    """Ten thousand places of a run of ours have ten thousand ids and stems."""
    run = run_id_of(time_ordered_id("resp", 1_700_000_000.0, bytes(10)))
    ids = {step_id_at(run, parent, n) for parent in (None, "step_a", "step_b") for n in range(3_000)}
    assert len(ids) == 9_000
    assert len({attempt_stem(step_id, 0) for step_id in ids}) == 9_000


@settings(deadline=None)
@given(
    st.lists(st.text(min_size=1, max_size=80), min_size=2, max_size=6, unique=True),
    st.integers(0, 255),
    st.integers(0, 0xFFFF),
)
def test_ids_of_items_differ_by_step_attempt_and_place(step_ids, attempt, place):
    """Whatever a store calls its steps: two steps, attempts or places never share an item id."""
    ids = {made_id("fc", attempt_stem(step_id, attempt), place) for step_id in step_ids}
    assert len(ids) == len(step_ids)
    first = step_ids[0]
    assert attempt_stem(first, attempt) != attempt_stem(first, (attempt + 1) % 256)
    item_id = made_id("fc", attempt_stem(first, attempt), place)
    assert stem_of(item_id) == attempt_stem(first, attempt)
    assert call_id_of(item_id).removeprefix("call_") == item_id.removeprefix("fc_")


def test_foreign_item_ids_have_no_stem():
    """What was not made here is not read as if it were."""
    for foreign in ("", "fc_", "msg_abc", "fc_" + "g" * 30, "x" * 40, "fc_" + "0" * 29, "fc_" + "0" * 31):
        assert stem_of(foreign) is None


def test_response_and_run_ids_tell_their_time_in_order():
    """A later id sorts after an earlier one, and a run has the id of its response."""
    ids = [
        time_ordered_id("resp", t, bytes([255 - n] * 10)) for n, t in enumerate((1.0, 1.002, 2.0, 1e9, 2e9))
    ]
    assert ids == sorted(ids)
    assert all(len(i) == len("resp_") + 32 for i in ids)
    assert run_id_of(ids[0]) == "run_" + ids[0].removeprefix("resp_")


FIELDS = {
    ResponseStep: (
        "id", "request_id", "ordinal", "prev_step_id", "parent_step_id", "step_kind", "step_sequence",
        "request_payload", "response_payload", "state", "started_at", "completed_at", "failed_at",
        "canceled_at", "retry_attempt", "error", "created_at", "updated_at",
    ),
    CreateStepInput: (
        "id", "request_id", "ordinal", "prev_step_id", "parent_step_id", "step_kind", "step_sequence",
        "request_payload",
    ),
    ChainStep: (
        "id", "kind", "state", "sequence", "prev_step_id", "parent_step_id", "request_payload",
        "response_payload", "error",
    ),
    StepDescriptor: ("kind", "request_payload", "ordinal"),
    RecordedStep: ("id", "sequence"),
    ToolCall: ("id", "call_id", "name", "arguments"),
    ToolResult: ("call_id", "output"),
    ToolSchema: ("name", "description", "parameters", "strict", "kind", "effect"),
    UpstreamTarget: ("endpoint", "path", "api_key"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "fields"), FIELDS.items())
def test_values_have_the_fields_of_the_contract(kind, fields):
    """Every field by its name; the values are frozen."""
    assert set(fields) <= set(kind.__struct_fields__)
    assert kind.__struct_config__.frozen


def test_descriptors_and_records_are_made_by_position():
    """As written in the contract: `StepDescriptor(kind, request_payload, ordinal)`."""
    step = StepDescriptor(StepKind.TOOL_CALL, {"a": 1}, 3)
    assert (step.kind, step.request_payload, step.ordinal) == (StepKind.TOOL_CALL, {"a": 1}, 3)
    assert RecordedStep("step_1", 7).sequence == 7
    assert ToolCall("fc_1", "call_1", "look", "{}").name == "look"
    assert ToolResult("call_1", "out").failed is False


def test_a_tool_is_once_unless_it_says_otherwise():
    """The careful default: never again when it is not known whether it happened."""
    schema = ToolSchema(name="pay")
    assert schema.effect is ToolEffect.ONCE
    assert schema.kind is ToolKind.FUNCTION
    assert schema.strict is False
    assert schema.as_function_tool()["parameters"] == {"type": "object", "properties": {}}


def test_a_context_is_a_map_by_type_and_never_changes():
    """`with_extension` gives a new context that knows one value more, under its type."""

    class User:
        pass

    empty, user = RequestContext(), User()
    known = empty.with_model("m").with_extension(user).with_extension(7)
    assert known.model == "m"
    assert known.extension(User) is user
    assert known.extension(int) == 7
    assert known.extension(str) is None
    assert (empty.model, empty.extensions) == (None, {})
    assert known.with_extension(8).extension(int) == 8
    assert known.extension(int) == 7
    assert known.with_model("n").extension(User) is user


@pytest.mark.parametrize(
    ("kind", "wire"),
    [
        (Custom(), {"type": "custom"}),
        (ApprovalPending("tu-1"), {"type": "approval_pending", "tool_use_id": "tu-1"}),
        (
            ScheduledPause(InterruptionPhase.BEFORE, "x"),
            {"type": "scheduled_pause", "phase": "before", "node": "x"},
        ),
    ],
)
def test_interruption_kinds_on_the_wire(kind, wire):
    """JSON tagged by `type`, there and back."""
    assert msgspec.to_builtins(kind) == wire
    assert msgspec.convert(wire, InterruptionKind) == kind


def test_usage_adds_up():
    """Sums go into every detail."""
    one = msgspec.convert(
        {
            "input_tokens": 3,
            "input_tokens_details": {"cached_tokens": 2},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 4},
            "total_tokens": 8,
        },
        Usage,
    )
    both = one + one
    assert (both.input_tokens, both.output_tokens, both.total_tokens) == (6, 10, 16)
    assert both.input_tokens_details.cached_tokens == 4
    assert both.output_tokens_details.reasoning_tokens == 8
    assert both + Usage() == both
    assert msgspec.to_builtins(Usage())["input_tokens_details"] == {
        "cached_tokens": 0,
        "cache_write_tokens": 0,
    }


def test_a_response_goes_to_the_wire_and_back():
    """Keys beyond the named ones are kept; `interruptions` are read from them."""
    wire = {**Response(id="resp_1", model="m").to_dict(), "interruptions": [{"id": "i"}], "later": {"x": 1}}
    response = Response.from_dict(wire)
    assert response.interruptions == [{"id": "i"}]
    assert response.to_dict() == wire
    assert "input_items" not in wire
    assert "extra" not in wire


def test_the_text_of_a_response_is_all_of_it():
    """`output_text` joins the text of all messages and leaves out all else."""
    output = [
        {
            "type": "reasoning",
            "id": "r",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "no"}],
        },
        {
            "type": "message",
            "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "n"}],
        },
        {"type": "mcp_call", "output": "no"},
        {"type": "message", "content": [{"type": "output_text", "text": "b"}]},
    ]
    assert Response(id="resp_1", model="m", output=output).output_text == "ab"
    assert Response(id="resp_1", model="m").output_text == ""


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [
        ("http://h:1", "/v1/chat/completions"),
        ("http://h:1/", "v1/chat/completions"),
        ("http://h:1/", "/v1/chat/completions"),
    ],
)
def test_a_target_is_one_address(endpoint, path):
    """Endpoint and path are joined by one slash."""
    assert UpstreamTarget(endpoint, path).url == "http://h:1/v1/chat/completions"
