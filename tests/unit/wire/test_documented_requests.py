"""/openapi.json and the validators agree on what depends on two fields, as far as JSON Schema can tell it."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from qserve.gateway.openapi import DocumentedWorker, document
from qserve.wire import openai
from qserve.wire.errors import ApiError
from qserve.wire.reward import table

_USER = {"role": "user", "content": "x"}
_CHAT = {"model": "m", "messages": [_USER]}
_TEXT = {"model": "m", "prompt": "x"}
_BODIES: list[tuple[str, dict[str, Any]]] = [
    *(
        ("ChatCompletionRequest", {**_CHAT, **fields})
        for fields in (
            {},
            {"stream_options": {}},
            {"stream_options": {}, "stream": True},
            {"stream_options": None},
            {"top_logprobs": 2},
            {"top_logprobs": 2, "logprobs": True},
            {"top_logprobs": None, "logprobs": None},
            {"logit_bias": {"12": 1.5}},
            {"logit_bias": {"x": 1.5}},
            {"messages": [{"role": "user"}]},
            {"messages": [{"role": "tool", "content": None}]},
            {"messages": [{"role": "user", "content": []}]},
        )
    ),
    *(
        ("CompletionRequest", {**_TEXT, **fields})
        for fields in (
            {},
            {"max_tokens": 0},
            {"max_tokens": 0, "echo": True},
            {"max_tokens": None},
            {"prompt": ["x"] * 2049},
            {"stream_options": {}, "stream": False},
            {"prompt": [5.0, 7]},
            {"prompt": [5.5]},
            {"prompt": [[1, 2.0]]},
            {"n": 2.0},
            {"n": 2.5},
            {"n": True},
            {"n": "2"},
            {"max_tokens": 1e300},
            {"best_of": 1},
            {"best_of": 2},
            {"best_of": 2, "n": 2},
            {"best_of": True},
            {"best_of": 1.0},
        )
    ),
    *(
        ("TokenizeRequest", fields)
        for fields in (
            {},
            {"prompt": "x"},
            {"messages": [_USER]},
            {"prompt": "x", "messages": None},
            {"prompt": None},
            {"prompt": "x", "messages": [_USER]},
            {"prompt": None, "messages": [_USER]},
        )
    ),
    *(
        ("RewardRequest", fields)
        for fields in (
            {},
            {"texts": ["x"]},
            {"texts": ["x"], "token_ids": [[1]]},
            {"texts": ["x"], "token_ids": None},
            {"prompt": "x", "responses": ["y"]},
            {"responses": ["y"]},
            {"prompt": "x", "texts": ["y"]},
            {"prompt": [_USER], "responses": [["a", "b"]]},
            {"conversations": [[_USER]]},
            {"token_ids": [[1.0]]},
            {"pairs": [{"prompt": "x", "chosen": "a", "rejected": "b"}]},
            {"pairs": [{"chosen": "a", "rejected": "b"}]},
            {"pairs": [{"chosen": [_USER], "rejected": [_USER]}]},
            {"pairs": [{"chosen": [_USER], "rejected": "b"}]},
        )
    ),
    *(("EmbeddingRequest", {"input": "x", "dimensions": dimensions}) for dimensions in (1, True, 2)),
    *(
        ("ChatRequest", {"model": "r", "messages": [_USER], **fields})
        for fields in ({"stream": False}, {"stream": 0}, {"stream": True}, {"n": 1}, {"n": True}, {"n": 2})
    ),
    *(
        ("ClassifyRequest", fields)
        for fields in (
            {},
            {"input": "x"},
            {"input": "x", "text": "y"},
            {"text": "x", "rid": "1"},
            {"input": "x", "rid": "1"},
            {"text": "x", "use_activation": True},
            {"input": "x", "use_activation": True, "activation": True},
            {"input": "x", "priority": 0},
            {"input": "x", "priority": False},
            {"input": "x", "add_generation_prompt": 0},
            {"input": "x", "use_activation": True, "activation": False},
            {"messages": [_USER], "activation": False},
            {"input_ids": [1], "truncate_prompt_tokens": 3},
            {"input": [1], "truncate_prompt_tokens": 3.0},
        )
    ),
    *(
        ("ScoreRequest", fields)
        for fields in (
            {"queries": "q", "documents": "d"},
            {"queries": "q", "text_2": "d"},
            {"queries": "q"},
            {"text_1": "q", "text_2": ["d", "e"]},
            {"data_1": ["q"], "data_2": "d"},
            {"queries": "q", "documents": "d", "items": "i"},
        )
    ),
    *(
        ("RerankRequest", {"query": "q", **fields})
        for fields in (
            {},
            {"documents": ["d"]},
            {"texts": ["d"]},
            {"documents": "d", "texts": ["d"]},
            {"texts": ["d"], "top_n": 1},
            {"documents": ["d"], "raw_scores": True},
            {"texts": ["d"], "raw_scores": True},
        )
    ),
    *(
        ("PoolingRequest", fields)
        for fields in ({}, {"input": "x"}, {"messages": [_USER]}, {"input": "x", "messages": [_USER]})
    ),
    *(
        ("PredictRequest", {"inputs": inputs})
        for inputs in ("x", ["a", "b"], ["a", "b", "c"], [["a"], ["b", "c"]], [["a", "b", "c"]], [], [[]])
    ),
]


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    workers = (DocumentedWorker("chat", "", ("m",), None), DocumentedWorker("reward", "", ("r",), None))
    return json.loads(document(True, workers))["components"]["schemas"]


@pytest.mark.parametrize(("name", "body"), _BODIES, ids=lambda one: json.dumps(one)[:60])
def test_what_is_documented_is_what_is_taken(name: str, body: dict[str, Any], schemas: dict[str, Any]) -> None:
    try:
        (getattr(openai, name, None) or getattr(table, name)).parse(json.dumps(body).encode())
        is_taken = True
    except ApiError:
        is_taken = False
    schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
    assert jsonschema_rs.is_valid(schema, body) == is_taken
