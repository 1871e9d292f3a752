"""What was meant by an unknown field: a place that the request has, and the right one of them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qserve.wire.dialects.messages import MessagesRequest
from qserve.wire.dialects.responses import ResponsesRequest
from qserve.wire.engine_fields import fields_of
from qserve.wire.errors import ApiError
from qserve.wire.hints import MIXED_UP, Place, hint_for, names_by_schema
from qserve.wire.openai import ChatCompletionRequest, CompletionRequest, Wire
from qserve.wire.reward.native import RewardRequest
from qserve.wire.reward.rankers import RerankRequest

SCHEMAS: tuple[type[Wire], ...] = (
    ChatCompletionRequest,
    CompletionRequest,
    ResponsesRequest,
    MessagesRequest,
    RerankRequest,
    RewardRequest,
)
PLACES = [
    (schema, place, name)
    for schema in SCHEMAS
    for place, names in sorted(names_by_schema(schema).at.items())
    for name in sorted(names)
]
TURN: Any = [{"role": "user", "content": "a"}]
CHAT: dict[str, Any] = {"model": "m", "messages": TURN}


def said(schema: type[Wire], body: dict[str, Any]) -> str:
    with pytest.raises(ApiError) as refused:
        schema.parse(json.dumps(body).encode())
    return str(refused.value)


def suggested(hint: str) -> list[Place]:
    return [tuple(part for part in one.split(".") if not part.isdigit()) for one in re.findall(r"'([^']+)'", hint)]


@pytest.mark.parametrize(
    ("schema", "body", "meant"),
    [
        (
            ChatCompletionRequest,
            {**CHAT, "response_format": {"type": "json_schema", "schema": {}}},
            "response_format.json_schema.schema",
        ),
        (ChatCompletionRequest, {**CHAT, "json_schema": {}}, "response_format.json_schema"),
        (ChatCompletionRequest, {**CHAT, "schema": {}}, "response_format.json_schema.schema"),
        (ChatCompletionRequest, {**CHAT, "tools": [{"type": "function", "name": "x"}]}, "tools.0.function.name"),
        (ChatCompletionRequest, {**CHAT, "messages": [{**TURN[0], "temperature": 1}]}, "temperature"),
        (ChatCompletionRequest, {**CHAT, "messages": [{"role": "user", "contnet": "a"}]}, "messages.0.content"),
        (ChatCompletionRequest, {**CHAT, "max_output_tokens": 1}, "max_completion_tokens"),
        (ChatCompletionRequest, {**CHAT, "include_usage": True}, "stream_options.include_usage"),
        (CompletionRequest, {"model": "m", "prompt": "a", "messages": TURN}, "prompt"),
        (ResponsesRequest, {"model": "m", "input": "a", "response_format": {}}, "text.format"),
        (ResponsesRequest, {"model": "m", "input": "a", "effort": "low"}, "reasoning.effort"),
        (MessagesRequest, {**CHAT, "max_tokens": 1, "stop": "a"}, "stop_sequences"),
        (MessagesRequest, {**CHAT, "max_tokens": 1, "budget_tokens": 1}, "thinking.budget_tokens"),
    ],
)
def test_the_right_place_is_told(schema: type[Wire], body: dict[str, Any], meant: str) -> None:
    assert f"did you mean '{meant}'?" in said(schema, body)


def test_a_field_of_another_route_is_told() -> None:
    assert said(MessagesRequest, {**CHAT, "max_tokens": 1, "frequency_penalty": 1}).endswith(
        "it is a field of /v1/chat/completions, /v1/completions and /v1/responses"
    )


def test_echo_of_a_chat_is_vllms_alone() -> None:
    """And no field of another route only: vLLM's chats have one of that name, which does something else."""
    assert ChatCompletionRequest.parse(json.dumps({**CHAT, "echo": False}).encode()).echo is False
    message = said(ChatCompletionRequest, {**CHAT, "echo": True})
    assert "--engine vllm" in message and "it is a field of" not in message


@given(st.sampled_from(PLACES), st.sampled_from(PLACES))
def test_a_name_in_another_place_is_sent_to_its_own(one: tuple[Any, Place, str], other: tuple[Any, Place, str]) -> None:
    """Every field of every schema, written a level higher or deeper: only places are told that have it."""
    schema, place, name = one
    _, here, _ = other
    names = names_by_schema(schema)
    assume(here in names.at and name not in names.at[here] and here != place)
    hint = hint_for((*here, name), names)
    assert all(last in names.at[tuple(path)] for *path, last in suggested(hint))
    if len(names.places_of(name)) == 1 and here in (place[:-1], (*place, name)) and "did you mean" in hint:
        near = suggested(hint)[0]
        assert near == (*place, name) or near[:-1] == here or near[0] in names.at[()]


@given(st.sampled_from(PLACES), st.data())
def test_a_misspelt_name_is_sent_to_a_neighbour(one: tuple[Any, Place, str], data: st.DataObject) -> None:
    schema, place, name = one
    assume(len(name) > 5)
    names = names_by_schema(schema)
    at = data.draw(st.integers(0, len(name) - 1))
    wrong = data.draw(st.sampled_from([name[:at] + name[at + 1 :], f"{name[:at]}x{name[at:]}"]))
    assume(wrong not in names.at[place])
    hint = hint_for((*place, wrong), names)
    (near,) = suggested(hint)
    assert near[:-1] == place and near[-1] in names.at[place]


@given(st.lists(st.text(max_size=120) | st.integers(0, 9), min_size=1, max_size=5))
def test_whatever_is_written_has_no_false_hint(path: list[str | int]) -> None:
    names = names_by_schema(ChatCompletionRequest)
    hint = hint_for(path, names, {route: names_by_schema(schema) for route, schema in MIXED_UP.items()})
    if "did you mean" in hint and "of which" not in hint and "'" not in "".join(map(str, path)):
        assert all(last in {name for names in names.at.values() for name in names} for *_, last in suggested(hint))


def test_an_engines_own_document_gives_the_same_hints() -> None:
    routes = {"/v1/chat/completions": ChatCompletionRequest, "/v1/responses": ResponsesRequest}
    document: dict[str, Any] = {"paths": {}, "components": {"schemas": {}}}
    for route, schema in routes.items():
        own = schema.model_json_schema(ref_template="#/components/schemas/{model}")
        document["components"]["schemas"] |= own.pop("$defs")
        body = {"content": {"application/json": {"schema": own}}}
        document["paths"][route] = {"post": {"requestBody": body}}
    fields = fields_of(document)
    for route, wrong, meant in (
        ("/v1/chat/completions", {"json_schema": {}}, "did you mean 'response_format.json_schema'"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "contnet": "a"}]}, "'messages.0.content'"),
        ("/v1/responses", {"response_format": {}}, "did you mean 'text.format'"),
        ("/v1/responses", {"min_tokens": 1}, "it is a field of /v1/chat/completions"),
    ):
        with pytest.raises(ApiError, match=re.escape(meant)):
            fields.check(route, "POST", wrong)
