"""4 bit while loading, on real vLLM behind our port, by bitsandbytes' plugin.

What is said without the plugin: tests/unit/engines/vllm/launch/test_failure.py, from vLLM's own log.
"""

from __future__ import annotations

import json

from tests.tiny.serving.served import Service
from tests.tiny.vllm.conftest import ADAPTER, NAMES

QUESTION = [{"role": "user", "content": "What is 12+30?"}]


def test_nf4_answers_whole_and_streamed(client):
    asked = {"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": 16}
    whole = client.chat.completions.create(**asked).choices[0].message.content
    pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**asked, stream=True)]
    assert whole and "".join(pieces) == whole


def test_every_name_that_was_asked_for_is_served(client):
    assert [card.id for card in client.models.list()] == [*NAMES, ADAPTER]
    answer = client.chat.completions.create(model="another/name", messages=QUESTION, temperature=0, max_tokens=2)
    assert answer.choices[0].message.content


def test_nf4_with_choices_and_logprobs(client):
    answer = client.chat.completions.create(
        model="demo", messages=QUESTION, n=2, max_tokens=4, logprobs=True, top_logprobs=2
    )
    assert [len(choice.logprobs.content[0].top_logprobs) for choice in answer.choices] == [2, 2]


def test_nf4_is_bound_by_a_schema_and_calls_tools(client):
    schema = {"type": "json_schema", "json_schema": {"name": "one", "schema": {"enum": [41, 43]}, "strict": True}}
    bound = client.chat.completions.create(
        model="demo", messages=QUESTION, max_tokens=64, temperature=0, response_format=schema
    )
    assert json.loads(bound.choices[0].message.content) in (41, 43)
    parameters = {
        "type": "object",
        "properties": {"a": {"enum": [12, 30]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "look", "parameters": parameters, "strict": True}}
    called = client.chat.completions.create(
        model="demo", messages=QUESTION, tools=[tool], tool_choice="required", max_tokens=300, temperature=0
    )
    assert called.choices[0].message.tool_calls[0].function.name == "look"


def test_nf4_holds_the_planned_cache(service: Service):
    (entry,) = service.get("/v1/qserve/memory").json()["data"]
    assert entry["planned"]["quant"]["scheme"] == "bnb-nf4"
    assert entry["memory"]["kv_cache_tokens"] == entry["planned"]["kv_cache_tokens"], entry
