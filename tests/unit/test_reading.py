"""Reading requests: every form of input, every limit at its border, and the JSON path of what is wrong."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon import RequestError
from antiphon.core import input_items
from antiphon.core.input_items import check_pairs, read_items
from antiphon.core.reading import read_request

FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


def read(**wire):
    numbers = itertools.count()
    return read_request({"model": "m", **wire}, lambda prefix: f"{prefix}_{next(numbers)}")


def items(given):
    numbers = itertools.count()
    return [item.data for item in read_items(given, lambda prefix: f"{prefix}_{next(numbers)}")]


def refused(**wire):
    with pytest.raises(RequestError) as caught:
        read(**wire)
    assert caught.value.http_status == 400
    assert caught.value.type == "invalid_request_error"
    assert caught.value.code
    assert caught.value.message
    return caught.value


def user(*parts, item_id="msg_0"):
    return {"id": item_id, "type": "message", "role": "user", "status": "completed", "content": list(parts)}


def text(words):
    return {"type": "input_text", "text": words}


class TestItems:
    """Every form that clients send is brought to one."""

    def test_a_string_is_a_user_message(self):
        """Whole, with an id, as it will be listed."""
        assert items("hi") == [user(text("hi"))]
        assert items("") == [user(text(""))]

    def test_nothing_is_no_items(self):
        """Null, an empty list, or no input at all."""
        assert items(None) == items([]) == []
        assert read().input == ()

    @pytest.mark.parametrize(
        "item",
        [
            {"role": "user", "content": "hi"},
            {"type": "message", "role": "user", "content": "hi"},
            {"type": "message", "role": "user", "content": [text("hi")]},
            {"type": "message", "role": "user", "content": "hi", "id": None, "status": None},
            {"role": "user", "content": [text("hi")], "status": "completed"},
        ],
    )
    def test_messages_of_any_form_are_one(self, item):
        """With and without type, as text or parts, with nulls for what is not known."""
        assert items([item]) == [user(text("hi"))]

    @pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
    def test_every_role(self, role):
        """Plain text of the assistant is output, of everybody else input."""
        (item,) = items([{"role": role, "content": "hi"}])
        assert item["role"] == role
        assert item["content"][0]["type"] == ("output_text" if role == "assistant" else "input_text")
        assert item["content"][0]["text"] == "hi"

    def test_ids_and_extra_keys_stay(self):
        """What the client called an item is kept, and so is what we do not know of it."""
        given = {**user(text("hi"), item_id="msg_mine"), "phase": "commentary", "later": {"x": 1}}
        assert items([given]) == [given]

    def test_parts_of_every_kind_stay_as_they_are(self):
        """Images, files and kinds that nobody knows yet."""
        parts = [
            text("hi"),
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
            {"type": "input_file", "file_data": "data:;base64,AAAA", "filename": "a.txt"},
            {"type": "input_hologram", "x": 1},
        ]
        assert items([{"role": "user", "content": parts}])[0]["content"] == parts

    def test_a_function_call_may_come_without_id_or_status(self):
        """Both are made; a null status counts as none."""
        given = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
        made = {**given, "id": "fc_0", "status": "completed"}
        assert items([given]) == items([{**given, "status": None, "id": None}]) == [made]

    @pytest.mark.parametrize("output", ["text", "", [], [text("a"), text("b")]])
    def test_an_output_is_a_string_or_parts(self, output):
        """Kept as it was sent."""
        given = {"type": "function_call_output", "call_id": "c1", "output": output}
        assert items([given]) == [{**given, "id": "fco_0", "status": "completed"}]

    @pytest.mark.parametrize(
        ("item", "prefix"),
        [
            ({"type": "reasoning", "summary": [], "encrypted_content": "foreign"}, "rs"),
            ({"type": "compaction", "encrypted_content": "x"}, "cmp"),
            ({"type": "mcp_call", "server_label": "l", "name": "n", "arguments": "{}", "output": "o"}, "mcp"),
            ({"type": "mcp_list_tools", "server_label": "l", "tools": []}, "mcpl"),
            ({"type": "mcp_approval_request", "server_label": "l", "name": "n", "arguments": "{}"}, "mcpr"),
            ({"type": "mcp_approval_response", "approval_request_id": "a", "approve": True}, "mcpa"),
            ({"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "raw"}, "ctc"),
            ({"type": "custom_tool_call_output", "call_id": "c", "output": "o"}, "ctco"),
            ({"type": "something_new", "x": 1}, "item"),
        ],
    )
    def test_other_items_pass(self, item, prefix):
        """With their own ids, or one that tells their kind."""
        (read_back,) = items([item])
        assert {**read_back, **item} == read_back
        assert read_back["id"] == f"{prefix}_0"
        assert items([{**item, "id": "own"}])[0]["id"] == "own"

    def test_references_keep_their_id(self):
        """They are resolved later, where the store is."""
        (item,) = items([{"type": "item_reference", "id": "msg_7"}])
        assert item == {"type": "item_reference", "id": "msg_7"}

    def test_ids_that_are_made_differ(self):
        """Two items without ids never share one."""
        made = items([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
        assert len({item["id"] for item in made}) == 2

    def test_reading_again_changes_nothing(self):
        """What comes out may be sent in again, and is the same."""
        once = items(
            [
                {"role": "user", "content": "a"},
                {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": [text("a")]},
                {"role": "assistant", "content": "b"},
            ]
        )
        assert items(once) == once

    def test_the_clients_objects_are_left_alone(self):
        """Reading makes new items and changes none that it was given."""
        given = [{"role": "user", "content": "a", "status": None}]
        items(given)
        assert given == [{"role": "user", "content": "a", "status": None}]


WRONG_ITEMS = [
    ({"content": "x"}, "input[1].type"),
    ({"type": None, "role": "user", "content": "x"}, "input[1].type"),
    ({"type": 7}, "input[1].type"),
    ({"role": "nobody", "content": "x"}, "input[1].role"),
    ({"type": "message", "content": "x"}, "input[1].role"),
    ({"role": "user"}, "input[1].content"),
    ({"role": "user", "content": 7}, "input[1].content"),
    ({"role": "user", "content": {"type": "input_text"}}, "input[1].content"),
    ({"role": "user", "content": [text("a"), "b"]}, "input[1].content[1]"),
    ({"role": "user", "content": [{"text": "a"}]}, "input[1].content[0]"),
    ({"role": "user", "content": [text(None)]}, "input[1].content[0].text"),
    ({"role": "user", "content": [{"type": "input_text"}]}, "input[1].content[0].text"),
    ({"role": "user", "content": "x", "id": 7}, "input[1].id"),
    ({"type": "function_call", "name": "f", "arguments": "{}"}, "input[1].call_id"),
    ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "input[1].name"),
    ({"type": "function_call", "call_id": "c", "name": "f"}, "input[1].arguments"),
    ({"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}, "input[1].arguments"),
    ({"type": "function_call_output", "output": "x"}, "input[1].call_id"),
    ({"type": "function_call_output", "call_id": "c"}, "input[1].output"),
    ({"type": "function_call_output", "call_id": "c", "output": 7}, "input[1].output"),
    ({"type": "function_call_output", "call_id": "c", "output": [7]}, "input[1].output[0]"),
    ({"type": "custom_tool_call", "call_id": "c", "name": "f"}, "input[1].input"),
    ({"type": "mcp_approval_response", "approve": True}, "input[1].approval_request_id"),
    ({"type": "item_reference"}, "input[1].id"),
    ({"role": "user", "content": "a\x00b"}, "input[1].content"),
    ({"role": "user", "content": [text("a\x00b")]}, "input[1].content[0].text"),
    (7, "input[1]"),
    ("text", "input[1]"),
    (None, "input[1]"),
]


@pytest.mark.parametrize(("item", "param"), WRONG_ITEMS)
def test_what_is_wrong_with_an_item_is_named_by_its_path(item, param):
    """Also when another item before it is right."""
    assert refused(input=[{"role": "user", "content": "fine"}, item]).param == param


WRONG_PARAMETERS = [
    ({"model": None}, "model"),
    ({"model": ""}, "model"),
    ({"model": 7}, "model"),
    ({"input": 7}, "input"),
    ({"input": {"role": "user"}}, "input"),
    ({"stream": "yes"}, "stream"),
    ({"store": 1}, "store"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"max_output_tokens": 15}, "max_output_tokens"),
    ({"max_output_tokens": 16.5}, "max_output_tokens"),
    ({"max_tool_calls": 0}, "max_tool_calls"),
    ({"truncation": "always"}, "truncation"),
    ({"metadata": {f"k{n}": "v" for n in range(17)}}, "metadata"),
    ({"metadata": {"k": "v" * 513}}, "metadata.k"),
    ({"metadata": {"k" * 65: "v"}}, "metadata." + "k" * 65),
    ({"metadata": {"a": "b", "k": 7}}, "metadata.k"),
    ({"metadata": []}, "metadata"),
    ({"include": "all"}, "include"),
    ({"include": [7]}, "include[0]"),
    ({"tools": {}}, "tools"),
    ({"tools": [FUNCTION, 7]}, "tools[1]"),
    ({"tools": [FUNCTION, {"name": "x"}]}, "tools[1].type"),
    ({"tools": [FUNCTION, {"type": "function"}]}, "tools[1]"),
    ({"tools": [{**FUNCTION, "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{**FUNCTION, "name": "x" * 65}]}, "tools[0].name"),
    ({"tools": [{**FUNCTION, "name": ""}]}, "tools[0].name"),
    ({"tools": [{**FUNCTION, "parameters": "x"}]}, "tools[0].parameters"),
    ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "x", "tools": [FUNCTION]}}, "tool_choice.mode"),
    ({"tool_choice": {}}, "tool_choice"),
    ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
    ({"text": {"format": 7}}, "text.format"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}}, "text.format.name"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"background": True, "store": False}, "background"),
    ({"instructions": "a\x00b"}, "instructions"),
    ({"metadata": {"a\x00": "b"}}, "metadata"),
    ({"unknown_key": {"deep": ["a\x00"]}}, "unknown_key.deep[0]"),
]


@pytest.mark.parametrize(("wire", "param"), WRONG_PARAMETERS)
def test_what_is_wrong_with_a_parameter_is_named_by_its_path(wire, param):
    """The JSON path stands in `param`."""
    assert refused(**wire).param == param


RIGHT_AT_THE_BORDER = [
    {"temperature": 0},
    {"temperature": 2},
    {"top_p": 0},
    {"top_p": 1},
    {"presence_penalty": -2},
    {"frequency_penalty": 2.0},
    {"top_logprobs": 20},
    {"max_output_tokens": 16},
    {"max_tool_calls": 1},
    {"metadata": {f"k{n}": "v" for n in range(16)}},
    {"metadata": {"k" * 64: "v" * 512}},
    {"tools": [{**FUNCTION, "name": "x" * 64}]},
    {"tools": [{**FUNCTION, "name": "aZ0_-"}]},
    {"tools": [{"type": "function", "name": "bare"}]},
    {"tools": [FUNCTION, {"type": "web_search"}, {"type": "web_search"}]},
    {"tool_choice": {"type": "function", "name": "look"}},
    {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [FUNCTION]}},
    {"text": {"format": {"type": "json_object"}}},
    {"text": {"format": None}},
    {"background": True, "store": True},
]


@pytest.mark.parametrize("wire", RIGHT_AT_THE_BORDER)
def test_what_is_just_within_the_limits_passes(wire):
    """And is kept as it was given."""
    request = read(**wire)
    for key, value in wire.items():
        kept = getattr(request, key)
        assert (list(kept) if isinstance(kept, tuple) else kept) == value


@pytest.mark.parametrize("body", [None, 7, "text", [], [{"model": "m"}]])
def test_a_body_is_an_object(body):
    """Anything else is refused as a whole."""
    with pytest.raises(RequestError, match="JSON object") as caught:
        read_request(body, lambda prefix: prefix)
    assert caught.value.param is None


def test_a_missing_model_says_so():
    """With the code that clients know."""
    error = refused(model=None)
    assert (error.code, error.param) == ("missing_parameter", "model")


def test_absent_parameters_have_their_defaults():
    """What is left out and what is null are one."""
    nothing = read()
    keys = (
        "stream",
        "store",
        "background",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "metadata",
        "truncation",
    )
    assert nothing == read(**dict.fromkeys(keys))
    assert (nothing.stream, nothing.background, nothing.store) == (False, False, True)
    assert (nothing.tool_choice, nothing.parallel_tool_calls, nothing.truncation) == (
        "auto",
        True,
        "disabled",
    )
    assert nothing.ignored == ()


def test_what_we_do_not_know_is_named():
    """Unknown parameters and includes are not refused; null ones are not even named."""
    request = read(
        client_metadata={"a": 1}, prompt=None, include=["file_search_call.results"], stream_options={}
    )
    assert request.ignored == ("client_metadata", "include: file_search_call.results")


class TestSizes:
    """Each limit counts what it is about, and no more."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        """The limits are data: here they are small."""
        monkeypatch.setattr(input_items, "MAX_TEXT_BYTES", 10)
        monkeypatch.setattr(input_items, "MAX_IMAGE_URL_BYTES", 20)
        monkeypatch.setattr(input_items, "MAX_FILE_BYTES", 30)

    def test_text_is_counted_over_all_items(self):
        """Strings and parts, contents, outputs and arguments, together."""
        fits = [
            {"role": "user", "content": "123"},
            {"role": "user", "content": [text("456"), text("7")]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "0"},
        ]
        assert len(items(fits)) == 4
        error = refused(input=[*fits, {"role": "user", "content": "x"}])
        assert (error.param, error.code) == ("input", "string_above_max_length")
        assert refused(input="x" * 11).param == "input"
        assert read(input="x" * 10)

    def test_text_is_counted_in_bytes(self):
        """The limit is one of bytes, whatever the script: five letters of two bytes fit, six do not."""
        assert read(input="é" * 5)
        assert refused(input="é" * 6).code == "string_above_max_length"

    def test_every_kind_of_text_is_counted(self):
        """The raw input of custom tools as well."""
        call = {"type": "custom_tool_call", "call_id": "c", "name": "f"}
        assert items([{**call, "input": "x" * 10}])
        assert refused(input=[{**call, "input": "x" * 11}]).param == "input"

    def test_images_and_files_have_limits_of_their_own(self):
        """They do not count as text; the path names the part."""

        def content(**part):
            return [{"role": "user", "content": [text("hi"), part]}]

        assert items(content(type="input_image", image_url="x" * 20))
        error = refused(input=content(type="input_image", image_url="x" * 21))
        assert (error.param, error.code) == ("input[0].content[1].image_url", "image_too_large")
        assert items(content(type="input_file", file_data="x" * 30))
        error = refused(input=content(type="input_file", file_data="x" * 31))
        assert (error.param, error.code) == ("input[0].content[1].file_data", "file_too_large")

    def test_images_in_outputs_are_measured_too(self):
        """A tool's output may hold images."""
        part = {"type": "input_image", "image_url": "x" * 21}
        error = refused(input=[{"type": "function_call_output", "call_id": "c", "output": [part]}])
        assert error.param == "input[0].output[0].image_url"


def test_the_limits_are_those_of_the_wire():
    """10 MB of text, 20 MiB an image, 32 MiB a file."""
    assert input_items.MAX_TEXT_BYTES >= 10_000_000
    assert input_items.MAX_IMAGE_URL_BYTES == 20 * 1024 * 1024
    assert input_items.MAX_FILE_BYTES == 32 * 1024 * 1024


class TestPairs:
    """Calls and outputs of the whole context of a turn."""

    def call(self, call_id, kind="function_call"):
        return {"type": kind, "call_id": call_id, "name": "f", "arguments": "{}", "status": "completed"}

    def output(self, call_id, kind="function_call_output"):
        return {"type": kind, "call_id": call_id, "output": "x"}

    def test_answered_calls_pass_in_any_order(self):
        """Outputs may come in another order than the calls, and later."""
        check_pairs([])
        check_pairs([self.call("a"), self.call("b"), user(text("x")), self.output("b"), self.output("a")])
        check_pairs([self.call("a", "custom_tool_call"), self.output("a", "custom_tool_call_output")])

    def test_an_output_needs_its_call_before_it(self):
        """The words that clients look for."""
        for wrong in (
            [self.output("a")],
            [self.output("a"), self.call("a")],
            [self.call("b"), self.output("b"), self.output("a")],
        ):
            with pytest.raises(
                RequestError, match="No tool call found for function call output with call_id a"
            ) as caught:
                check_pairs(wrong)
            assert (caught.value.param, caught.value.http_status) == ("input", 400)

    def test_a_call_needs_its_output(self):
        """The first open one is named."""
        with pytest.raises(RequestError, match="No tool output found for function call b"):
            check_pairs([self.call("a"), self.call("b"), self.call("c"), self.output("a")])

    def test_calls_of_ours_need_none(self):
        """An `mcp_call` holds its own result."""
        check_pairs([{"type": "mcp_call", "id": "m", "name": "n", "arguments": "{}", "output": None}])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ITEM_KEYS = [
    "type",
    "role",
    "content",
    "id",
    "status",
    "call_id",
    "name",
    "arguments",
    "output",
    "text",
    "input",
]
ITEM_VALUES = JSON | st.sampled_from(
    ["message", "function_call", "function_call_output", "reasoning", "user", "assistant", "mcp_call"]
)
PARAMETERS = [
    "model", "input", "tools", "tool_choice", "text", "metadata", "stream", "include", "reasoning", "instructions",
    "max_output_tokens", "temperature", "store", "background", "stream_options", "conversation", "anything",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from(PARAMETERS), JSON, max_size=6),
    st.none() | st.lists(st.dictionaries(st.sampled_from(ITEM_KEYS), ITEM_VALUES, max_size=5), max_size=3),
)
def test_any_json_is_read_or_refused(wire, listed):
    """Nothing that can be sent makes reading fail in any other way; what is read can be read again."""
    body = {"model": "m", **wire} if listed is None else {"model": "m", **wire, "input": listed}
    numbers = itertools.count()
    try:
        request = read_request(body, lambda prefix: f"{prefix}_{next(numbers)}")
    except RequestError:
        return
    again = [item.data for item in request.input]
    assert items(again) == again
    for item in request.input:
        assert item.id == item.data["id"]
