"""The document narrows to what the running models take."""

from __future__ import annotations

import json
import re

import jsonschema_rs
import pytest

from qserve.gateway.openapi import DocumentedWorker, document
from qserve.gateway.openapi_bounds import pattern_below

CHAT = DocumentedWorker("chat", "", ("m",), None, max_model_len=100, vocab_size=1280)
REWARD = DocumentedWorker("reward", "", ("r",), None, max_model_len=100, vocab_size=50)
DOCUMENT = json.loads(document(True, (CHAT, REWARD)))


@pytest.mark.parametrize("end", [1, 2, 9, 10, 11, 100, 123, 1280, 151_936])
def test_a_pattern_for_numbers_below(end):
    pattern = re.compile(pattern_below(end))
    numbers = {
        0,
        1,
        5,
        9,
        10,
        11,
        99,
        100,
        101,
        119,
        120,
        122,
        123,
        1279,
        1280,
        151_935,
        151_936,
        end - 1,
        end,
        10 * end,
    }
    for number in numbers:
        assert (pattern.search(str(number)) is not None) == (number < end), number
    assert pattern.search(f"00{end - 1}") and not pattern.search("") and not pattern.search("x")


def taken(name, body):
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return jsonschema_rs.is_valid(schema, body)


@pytest.mark.parametrize(
    ("name", "body", "is_taken"),
    [
        ("CompletionRequest", {"model": "m", "prompt": [1279]}, True),
        ("CompletionRequest", {"model": "m", "prompt": [1280]}, False),
        ("CompletionRequest", {"model": "r", "prompt": [1]}, False),
        ("CompletionRequest", {"model": "m", "prompt": [[5] * 100]}, False),
        ("CompletionRequest", {"model": "m", "prompt": ""}, False),
        ("CompletionRequest", {"model": "m", "prompt": "x", "max_tokens": 99}, True),
        ("CompletionRequest", {"model": "m", "prompt": "x", "max_tokens": 100}, False),
        ("CompletionRequest", {"model": "m", "prompt": "x", "logit_bias": {"1279": 1}}, True),
        ("CompletionRequest", {"model": "m", "prompt": "x", "logit_bias": {"1280": 1}}, False),
        ("CompletionRequest", {"model": "m", "prompt": "x", "stop_token_ids": [1280]}, False),
        ("DetokenizeRequest", {"tokens": [1280]}, False),
        ("RewardRequest", {"model": "r", "token_ids": [[49]]}, True),
        ("RewardRequest", {"model": "r", "token_ids": [[50]]}, False),
        ("RewardRequest", {"model": "m", "token_ids": [[1]]}, False),
        ("RewardRequest", {"texts": [""]}, False),
    ],
)
def test_what_the_models_take(name, body, is_taken):
    assert taken(name, body) == is_taken
