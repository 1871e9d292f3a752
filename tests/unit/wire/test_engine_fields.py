"""Fields of another engine's requests, by its own document: unknown ones are named, however deep, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qserve.engines.vllm.wire import requests
from qserve.wire.body_scan import read_object
from qserve.wire.engine_fields import fields_of
from qserve.wire.errors import ApiError

_OPEN = {"type": "object", "additionalProperties": True}


def _object(required=(), **properties):
    """As vLLM's document has them: open by its own word, while the engine drops what it does not know."""
    return {"type": "object", "additionalProperties": True, "properties": properties, "required": list(required)}


def _ref(name):
    return {"$ref": f"#/components/schemas/{name}"}


def _list(item):
    return {"type": "array", "items": item}


def _any(*schemas):
    return {"anyOf": list(schemas)}


_STRING = {"type": "string"}
DOCUMENT = {
    "paths": {
        "/v1/chat/completions": {"post": {"requestBody": {"content": {"application/json": {"schema": _ref("Chat")}}}}},
        "/v1/models": {"get": {}},
    },
    "components": {
        "schemas": {
            "Chat": _object(
                model={"anyOf": [_STRING, {"type": "null"}]},
                messages={"type": "array", "items": {"anyOf": [_ref("User"), _ref("Legacy"), _ref("Any")]}},
                stream_options={"anyOf": [_ref("StreamOptions"), {"type": "null"}]},
                tools={"type": "array", "items": _ref("Tool")},
                n={"type": "integer"},
                max_tokens={"type": "integer"},
                max_completion_tokens={"type": "integer"},
                chat_template_kwargs=_OPEN,
                bad_words={"type": "array", "items": _STRING},
                anything={"title": "anything"},
            ),
            "StreamOptions": _object(include_usage={"type": "boolean"}),
            "User": _object(
                ("role", "content"),
                role={"const": "user"},
                content=_any(_STRING, _list(_any(_ref("Text"), _ref("Image"), _ref("Bare")))),
            ),
            "Legacy": _object(("role",), role={"enum": ["assistant", "function"]}, content=_STRING, tool_calls=_OPEN),
            "Any": _object(("role",), role=_STRING, content=_any(_STRING, _list(_ref("Text")))),
            "Text": _object(("type",), type={"const": "text"}, text=_STRING),
            "Image": _object(("type",), type={"const": "image_url"}, image_url=_object(url=_STRING)),
            "Bare": _object(uuid=_STRING, image_url=_STRING),
            "Tool": _object(function=_object(("name",), name=_STRING, parameters=_OPEN), children=_list(_ref("Tool"))),
        }
    },
}
CHAT = "/v1/chat/completions"
FIELDS = fields_of(DOCUMENT)
USER = {"role": "user", "content": "x"}


def _parts(*parts):
    return {"messages": [{"role": "user", "content": list(parts)}]}


KNOWN = {
    "plain": {"model": "m", "messages": [USER], "stream_options": {"include_usage": True}},
    "nulls of unknown names": {"messages": [USER], "foo": None, "stream_options": {"bar": None}},
    "open objects": {"messages": [USER], "chat_template_kwargs": {"a": {"b": 1}}},
    "no schema at all": {"anything": {"a": 1}},
    "a tool's schema": {"tools": [{"function": {"name": "f", "parameters": {"properties": {"x": {}}}}}]},
    "a schema in itself": {"tools": [{"children": [{"children": [{"function": {"name": "f"}}]}]}]},
    "parts": _parts({"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "u"}}, {"uuid": "1"}),
    "another role": {"messages": [{"role": "assistant", "tool_calls": {"any": 1}}]},
    "lists of strings": {"bad_words": ["a", "b"]},
    "wrong kinds, which the engine refuses itself": {"messages": "x", "stream_options": [1], "tools": {"a": 1}},
}
UNKNOWN = {
    "foo": {"messages": [USER], "foo": 1},
    "stream_options.include_usag": {"stream_options": {"include_usag": True}},
    "messages.1.name": {"messages": [USER, {**USER, "name": "x"}]},
    "messages.0.content.1.uuid": _parts({"type": "text", "text": "x"}, {"type": "text", "text": "x", "uuid": "1"}),
    "messages.0.content.0.image_url.detail": _parts({"type": "image_url", "image_url": {"url": "u", "detail": "low"}}),
    "tools.0.function.params": {"tools": [{"function": {"name": "f", "params": {}}}]},
    "tools.0.children.0.x": {"tools": [{"children": [{"x": 1}]}]},
}


@pytest.mark.parametrize("case", KNOWN)
def test_what_the_document_names_passes(case):
    FIELDS.check(CHAT, "POST", KNOWN[case])


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_it_does_not_name_is_refused_by_its_path(name):
    with pytest.raises(ApiError) as refused:
        FIELDS.check(CHAT, "POST", UNKNOWN[name])
    assert refused.value.status == 400 and refused.value.code == "unsupported_field"
    assert refused.value.param == name and f"'{name}'" in refused.value.message


@pytest.mark.parametrize("role", ["robot", "function", "User", ""])
def test_a_role_that_templates_drop_is_refused(role):
    """One alternative takes any string for a role; it does not make every role known."""
    with pytest.raises(ApiError) as refused:
        FIELDS.check(CHAT, "POST", {"messages": [{"role": role, "content": "x"}]})
    assert refused.value.param == "messages.0.role" and "there is assistant, user" in refused.value.message


def test_a_million_token_ids_are_not_walked():
    shape = FIELDS.shapes[CHAT, "POST"].objects[0].fields["bad_words"]
    assert not any(one.has_names for one in shape.items)


def test_a_name_can_be_known_beside_the_document():
    FIELDS.check(CHAT, "POST", {"messages": [{**USER, "cache_control": {"type": "x"}}]}, frozenset({"cache_control"}))


def test_the_routes_of_the_engine_are_known():
    assert FIELDS.routes == {(CHAT, "POST"), ("/v1/models", "GET")}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"user": "a", "metadata": {"a": {"b": 1}}, "store": False, "service_tier": "auto"},
        {"n": 3},
        {"store": True, "service_tier": "flex"},
        {"prompt_cache_retention": "24h", "modalities": ["text"], "verbosity": "high"},
        {"best_of": 1},
        {"messages": [USER, {**USER, "annotations": []}]},
        {"max_tokens": 3, "max_completion_tokens": 3},
        {"priority": 0},
        {"request_id": None},
    ],
)
def test_harmless_fields_pass(fields):
    requests.check_body(FIELDS, CHAT, {"model": "m", "messages": [USER], **fields})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"priority": 1}, "priority"),
        ({"request_id": "a"}, "request_id"),
        ({"kv_transfer_params": {}}, "kv_transfer_params"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"model": 3}, "model"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"verbosity": "loud"}, "verbosity"),
        ({"best_of": 2}, "best_of"),
        ({"return_token_offsets": True}, "return_token_offsets"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"structured_outputs": {"whitespace_pattern": " ?"}}, "structured_outputs.whitespace_pattern"),
    ],
)
def test_what_vllm_takes_and_does_not_read_is_refused(fields, param):
    with pytest.raises(ApiError) as refused:
        requests.check_body(FIELDS, CHAT, {"messages": [USER], **fields})
    assert refused.value.status == 400 and refused.value.param == param


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({"tools": []}, set()),
        ({"tools": [], "tool_choice": "auto"}, set()),
        ({"tool_choice": "auto"}, set()),
        ({"tool_choice": "none"}, set()),
        ({"tools": [], "tool_choice": {"type": "auto"}}, set()),
        ({"tools": None, "tool_choice": None}, set()),
        ({"tools": [], "tool_choice": "required"}, {"tool_choice"}),
        ({"tools": [{}], "tool_choice": "auto"}, {"tools", "tool_choice"}),
        ({"tools": 0}, {"tools"}),
    ],
)
def test_what_says_that_there_are_no_tools_is_not_handed_on(fields, left):
    assert requests.without_no_tools({"model": "m", **fields}).keys() == {"model", *left}


def test_a_body_that_needs_no_change_is_the_same():
    body = {"model": "m", "messages": [USER]}
    assert requests.without_no_tools(body) is body


@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b"", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_object(body):
    with pytest.raises(ApiError) as refused:
        read_object(body)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("count", "body", "num"),
    [
        (requests.n_of_chat, {}, 1),
        (requests.n_of_chat, {"n": 3}, 3),
        (requests.n_per_prompt, {"prompt": "x", "n": 2}, 2),
        (requests.n_per_prompt, {"prompt": ["x", "y"], "n": 2}, 4),
        (requests.n_per_prompt, {"prompt": [1, 2, 3]}, 1),
        (requests.n_per_prompt, {"prompt": [[1, 2], [3]]}, 2),
        (requests.n_per_prompt, {"prompt": []}, 1),
        (requests.one_per_conversation, {"messages": [[USER], [USER]]}, 2),
        (requests.one_per_input, {"input": ["a", "b"]}, 2),
        (requests.n_of_sampling_params, {"sampling_params": {"n": 4}}, 4),
        (requests.n_of_sampling_params, {}, 1),
        (requests.one_per_item, {"items": ["a", "b", "c"]}, 3),
        (requests.one_per_question, {"questions": {"a": 1, "b": 2}}, 2),
        (requests.one, {"n": 7}, 1),
    ],
)
def test_sequences_are_counted(count, body, num):
    assert count(body) == num


@pytest.mark.parametrize("n", ["3", 0, -1, True, 1.5, [1], 129])
def test_n_that_is_no_count_is_refused(n):
    with pytest.raises(ApiError) as refused:
        requests.n_of_chat({"n": n})
    assert refused.value.param == "n"


_names = st.sampled_from(["role", "type", "messages", "content", "tools", "function", "stream_options", "foo", "store"])
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["user", "text", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(_names, _values, max_size=5))
def test_whatever_stands_in_a_body_it_passes_or_is_a_400(body):
    try:
        requests.check_body(FIELDS, CHAT, body)
    except ApiError as error:
        assert error.status == 400 and error.param
    else:
        assert body.get("foo") is None, "an unknown name passed"


@pytest.mark.parametrize(
    ("kind", "value"), [("regex", "[0-9]"), ("choice", ["a"]), ("json", {}), ("grammar", "root ::= [0-9]")]
)
def test_older_names_of_a_structure_are_brought_under_the_new_one(kind, value):
    """vLLM reads them no more; the own engine does."""
    body = {"model": "m", "guided_json": None, f"guided_{kind}": value}
    for path in ("/v1/chat/completions", "/v1/completions"):
        assert requests.with_structured_outputs(path, body) == {"model": "m", "structured_outputs": {kind: value}}
    assert requests.with_structured_outputs("/v1/responses", body) is body


def test_no_structure_stays_none_and_two_are_refused():
    path, plain = "/v1/chat/completions", {"model": "m"}
    assert requests.with_structured_outputs(path, plain) is plain
    assert requests.with_structured_outputs(path, {"model": "m", "guided_regex": None}) == plain
    for other in ({"guided_choice": ["a"]}, {"structured_outputs": {"choice": ["a"]}}):
        with pytest.raises(ApiError, match="one of them"):
            requests.with_structured_outputs(path, {"model": "m", "guided_regex": "a", **other})
