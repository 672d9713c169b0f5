"""Shapes against the specification and against the official client's types."""

import copy
import json
from pathlib import Path

import pytest

from antiphon.testing import SchemaValidator
from made_streams import GOOD, RESPONSE, USAGE, Told, text_stream

SPEC = Path(__file__).parent.parent / "spec"


@pytest.fixture(scope="module")
def schemas():
    openapi, inventory = (
        json.loads((SPEC / name).read_bytes())
        for name in ("openresponses-2026-04-24.openapi.json", "openai-python-3.52.0-inventory.json")
    )
    return SchemaValidator(openapi, inventory)


def found(stream, kind, nth=0):
    return [event for event in stream if event["type"] == kind][nth]


@pytest.mark.parametrize("name", GOOD)
def test_good_streams_have_good_shapes(schemas, name):
    """Every event of every good stream is right by both schemas, the server's own calls among them."""
    for event in GOOD[name]():
        assert schemas.event(event) == []
        if "response" in event:
            assert schemas.response(event["response"]) == []


def test_the_specifications_own_reasoning_events(schemas):
    """Both names of the reasoning events are known."""
    event = {
        "type": "response.reasoning.delta",
        "sequence_number": 3,
        "item_id": "rs_1",
        "output_index": 0,
        "content_index": 0,
        "delta": "x",
    }
    assert schemas.event(event) == []
    assert schemas.event({**event, "type": "response.reasoning_text.delta"}) == []
    assert schemas.event({**event, "type": "response.reasoning_words.delta"}) != []


@pytest.mark.parametrize(
    ("kind", "path", "value", "words"),
    [
        ("response.output_text.delta", ("delta",), ..., "delta is missing"),
        ("response.output_text.delta", ("delta",), 5, "delta"),
        ("response.output_text.delta", ("logprobs",), ..., "logprobs is missing"),
        ("response.output_text.delta", ("content_index",), "0", "content_index"),
        ("response.output_item.added", ("item", "id"), ..., "id"),
        ("response.output_item.added", ("item", "status"), "begun", "status"),
        ("response.output_item.added", ("item", "type"), "thought", "known to neither"),
        ("response.content_part.added", ("part", "annotations"), ..., "added.part: "),
        ("response.completed", ("response", "temperature"), None, "temperature"),
        ("response.completed", ("response", "usage", "output_tokens_details"), ..., "response.usage: "),
        ("response.completed", ("response", "reasoning", "effort"), ..., "response.reasoning: "),
        ("response.completed", ("response", "output", 0, "type"), "thought", "known to neither"),
        ("response.completed", ("response", "tools"), [{"type": "teleport"}], "known to neither"),
        ("response.completed", ("response", "tools"), [{"type": "mcp"}], "server_label is missing"),
        (
            "response.completed",
            ("response", "tools"),
            [{"type": "function", "name": "f"}],
            "response.tools[0]: ",
        ),
    ],
)
def test_each_defect_is_found(schemas, kind, path, value, words):
    """One wrong value in one event is named."""
    event = copy.deepcopy(found(text_stream(), kind))
    target = event
    for step in path[:-1]:
        target = target[step]
    if value is ...:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    violations = schemas.event(event)
    assert any(words in violation for violation in violations), violations


@pytest.mark.parametrize(
    ("key", "value"),
    [("arguments", ...), ("server_label", ...), ("error", "boom"), ("status", "gone"), ("output", 5)],
)
def test_items_that_only_the_client_knows(schemas, key, value):
    """An `mcp_call` is held against the inventory, in its own event and in the response."""
    item = copy.deepcopy(found(GOOD["mcp"](), "response.output_item.done")["item"])
    if value is ...:
        del item[key]
    else:
        item[key] = value
    event = {"type": "response.output_item.done", "sequence_number": 1, "output_index": 0, "item": item}
    assert any(key in violation for violation in schemas.event(event))
    ended = {**RESPONSE, "status": "completed", "completed_at": 1, "usage": USAGE, "output": [item]}
    assert any(key in violation for violation in schemas.response(ended))


def test_extra_keys_are_allowed(schemas):
    """What we add beside the schema is no violation."""
    assert schemas.response({**RESPONSE, "interruptions": [], "warnings": ["x"]}) == []
    event = {**Told().begin().events[0], "stream_id": "s"}
    assert schemas.event(event) == []


def test_unknown_event_types_are_violations(schemas):
    """Nothing is skipped."""
    assert schemas.event({"type": "response.pondering", "sequence_number": 0}) == [
        "event type 'response.pondering' is known to neither schema"
    ]


def test_an_error_event_needs_both_forms(schemas):
    """Flat for the client, nested for the specification."""
    event = found(GOOD["failed"](), "error")
    flat = {key: value for key, value in event.items() if key != "error"}
    nested = {key: value for key, value in event.items() if key != "message"}
    assert schemas.event(event) == []
    assert schemas.event(flat) != []
    assert schemas.event(nested) != []


def test_an_echoed_json_schema_format_is_held_against_the_requests_type(schemas):
    """The specification's type for the echo allows no schema; what a client may send may come back."""
    text_format = {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}
    assert schemas.response({**RESPONSE, "text": {"format": text_format}}) == []
    for key, value in (("name", 5), ("schema", "no"), ("strict", "yes")):
        assert schemas.response({**RESPONSE, "text": {"format": {**text_format, key: value}}}) != []
