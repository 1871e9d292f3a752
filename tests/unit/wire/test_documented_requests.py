"""/openapi.json and the validators agree on what depends on two fields, as far as JSON Schema can tell it."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from pydantic import ValidationError

from qserve.gateway.openapi import DocumentedWorker, document
from qserve.wire import openai

_USER = {"role": "user", "content": "x"}
_CHAT = {"model": "m", "messages": [_USER]}
_TEXT = {"model": "m", "prompt": "x"}
_BODIES: list[tuple[str, dict[str, Any]]] = [
    *(("ChatCompletionRequest", {**_CHAT, **fields}) for fields in (
        {}, {"stream_options": {}}, {"stream_options": {}, "stream": True}, {"stream_options": None},
        {"top_logprobs": 2}, {"top_logprobs": 2, "logprobs": True}, {"top_logprobs": None, "logprobs": None},
        {"logit_bias": {"12": 1.5}}, {"logit_bias": {"x": 1.5}}, {"messages": [{"role": "user"}]},
        {"messages": [{"role": "tool", "content": None}]}, {"messages": [{"role": "user", "content": []}]},
    )),
    *(("CompletionRequest", {**_TEXT, **fields}) for fields in (
        {}, {"max_tokens": 0}, {"max_tokens": 0, "echo": True}, {"max_tokens": None}, {"prompt": ["x"] * 2049},
        {"stream_options": {}, "stream": False},
    )),
    *(("TokenizeRequest", fields) for fields in (
        {}, {"prompt": "x"}, {"messages": [_USER]}, {"prompt": "x", "messages": None}, {"prompt": None},
        {"prompt": "x", "messages": [_USER]}, {"prompt": None, "messages": [_USER]},
    )),
]  # fmt: skip


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    return json.loads(document(True, (DocumentedWorker("chat", "transformers", ("m",), None),)))["components"][
        "schemas"
    ]


@pytest.mark.parametrize(("name", "body"), _BODIES, ids=lambda one: json.dumps(one)[:60])
def test_what_is_documented_is_what_is_taken(name: str, body: dict[str, Any], schemas: dict[str, Any]) -> None:
    try:
        getattr(openai, name).model_validate(body)
        is_taken = True
    except ValidationError:
        is_taken = False
    schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
    assert jsonschema_rs.is_valid(schema, body) == is_taken
