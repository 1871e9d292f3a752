"""What can't be scored is a 400 that names the field."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from qserve.errors import RequestFailed
from qserve.reward.protocols.job import ModelInfo
from qserve.reward.protocols.table import PROTOCOLS
from qserve.wire.errors import ApiError, from_failure

ROOT = Path(__file__).parents[4]
ABOUT = ModelInfo("rm", {})
USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}


def refused(path, body):
    """The error of a request."""
    text = body if isinstance(body, str) else json.dumps(body)
    protocol = PROTOCOLS[path]
    with pytest.raises((ApiError, RequestFailed)) as raised:
        protocol.job(protocol.schema.parse(text.encode()), ABOUT)
    error = raised.value
    return from_failure(error.code, str(error), error.param) if isinstance(error, RequestFailed) else error


@pytest.mark.parametrize("path", PROTOCOLS)
@pytest.mark.parametrize("body", ['{"model": "rm", "inp', "[]", '"text"', "{}", '{"no_such_field": 1}', "null", ""])
def test_half_a_json_and_wrong_shapes(path, body):
    assert refused(path, body).status == 400


@pytest.mark.parametrize("path", PROTOCOLS)
def test_a_field_that_nobody_reads_is_named(path):
    error = refused(path, {"rewrad": 1})
    assert (error.code, error.status) == ("unsupported_field", 400)
    assert "'rewrad' is not a field of this request" in error.message


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/reward", {"prompt": "q", "responses": ["a", ""]}, "'responses.1' ends with an empty answer"),
        ("/v1/reward", {"conversations": [[USER]]}, "'conversations.0' ends with a message of role 'user'"),
        ("/v1/reward", {"conversations": [[{"role": "judge", "content": "x"}]]}, "conversations.0.0.role"),
        (
            "/v1/reward",
            {"conversations": [[{**USER, "content": [{"type": "refusal", "refusal": "no"}]}, ANSWER]]},
            "a message of role 'user' has no refusal",
        ),
        ("/v1/reward", {"conversations": [[USER, ANSWER]], "texts": ["a"]}, "'conversations' and 'texts'"),
        ("/v1/reward", {"conversations": []}, "conversations"),
        ("/v1/reward", {"prompt": "q"}, "give one of"),
        ("/v1/reward", {"responses": ["a"]}, "'prompt' and 'responses' belong together"),
        ("/v1/reward", {"prompt": [USER, ANSWER], "responses": ["a"]}, "'prompt' ends with the assistant's"),
        ("/v1/reward", {"prompt": "q", "responses": [["one", "two"]]}, "not a process reward model"),
        ("/v1/reward", {"texts": [""]}, "'texts.0' is an empty text"),
        ("/v1/reward", {"texts": ["a"], "normalize": True}, "records no mean"),
        ("/v1/reward", {"texts": ["a"], "normalize": {"mean": 0, "std": 0}}, "normalize"),
        ("/v1/reward", {"texts": ["a"], "truncate": "middle"}, "truncate"),
        ("/v1/reward", {"pairs": [{"chosen": "a", "rejected": [USER, ANSWER]}]}, "without 'prompt'"),
        ("/v1/reward", {"pairs": [{"prompt": "q", "chosen": "a", "rejected": ""}]}, "'pairs.0.rejected' ends with an"),
        ("/v1/reward", {"pairs": [{"prompt": "q", "chosen": "a"}]}, "rejected"),
        ("/v1/reward", {"token_ids": [[]]}, "token_ids"),
        ("/v1/reward", {"token_ids": [[1.5]]}, "token_ids"),
        ("/get_reward", {"query": ["a", ""]}, "'query.1' is an empty text"),
        ("/get_reward", {"query": [1]}, "query"),
        ("/classify", {"input": ""}, "'input' is an empty text"),
        ("/classify", {"input": "a", "text": "b"}, "'input' and 'text'"),
        ("/classify", {"text": "a", "use_activation": False}, "not a field of SGLang's /classify"),
        ("/classify", {"input": "a", "rid": "x"}, "'rid' belongs to SGLang"),
        ("/classify", {"text": ["a", "b"], "rid": ["x"]}, "'rid' has 1 ids for 2 texts"),
        ("/classify", {"input": "a", "use_activation": True, "activation": False}, "they differ"),
        ("/classify", {"messages": [USER]}, "the last message must be the assistant's"),
        ("/pooling", {"input": "a", "task": "embed"}, "task"),
        ("/v1/embeddings", {"input": "a", "dimensions": 64}, "dimensions"),
        ("/score", {"queries": ["p", "q"], "documents": ["a", "b", "c"]}, "2 queries for 3 documents"),
        ("/score", {"queries": "q", "text_2": "a"}, "'queries' does not go with 'text_2'"),
        ("/score", {"queries": "q", "documents": [""]}, "'documents.0' ends with an empty answer"),
        (
            "/rerank",
            {"query": "q", "documents": ["a"], "raw_scores": True},
            "'raw_scores' is not a field of /rerank with",
        ),
        ("/rerank", {"query": "q", "texts": ["a"], "top_n": 1}, "'top_n' is not a field of text-embeddings"),
        ("/predict", {"inputs": [["a", "b", "c"]]}, "a pair of them"),
        ("/predict", {"inputs": []}, "inputs"),
        ("/v1/chat/completions", {"model": "rm", "messages": [USER]}, "role 'user'"),
        ("/v1/chat/completions", {"model": "rm", "messages": [USER, ANSWER], "stream": True}, "stream"),
        ("/v1/chat/completions", {"model": "rm", "messages": [USER, ANSWER], "n": 2}, "'n'"),
        ("/v1/score/evaluation", {"model": "model", "messages": []}, "messages"),
    ],
)
def test_what_is_wrong_is_said(path, body, words):
    error = refused(path, body)
    assert error.status == 400
    assert words in error.message


@pytest.mark.parametrize("path", PROTOCOLS)
def test_every_request_counts_its_texts(path):
    """The gateway takes that many places for it."""
    schema = PROTOCOLS[path].schema
    bodies = {
        "/v1/reward": {"pairs": [{"prompt": "q", "chosen": "a", "rejected": "b"}]},
        "/get_reward": {"query": ["a", "b"]},
        "/classify": {"input": [[1], [2]]},
        "/pooling": {"input": ["a", "b"]},
        "/predict": {"inputs": [["a"], ["b", "c"]]},
        "/": {"inputs": [["a"], ["b", "c"]]},
        "/v1/embeddings": {"input": ["a", "b"]},
        "/v1/score/evaluation": {"messages": ["a", "b"]},
        "/v1/chat/completions": {"model": "rm", "messages": [USER, ANSWER]},
    }
    score, rerank = {"queries": "q", "documents": ["a", "b"]}, {"query": "q", "texts": ["a", "b"]}
    body = bodies.get(path) or (score if "score" in path else rerank)
    assert schema.model_validate_json(json.dumps(body)).num_texts() == (1 if "chat" in path else 2)


def test_every_metric_of_the_worker_is_on_the_page():
    source = (ROOT / "qserve" / "reward" / "serving" / "metrics.py").read_text()
    named = set(re.findall(r'"(qserve_reward_\w+)"', source))
    page = (ROOT / "docs" / "api.md").read_text()
    told = set(re.findall(r"`(qserve_reward_\w+?)(?:_total)?`", page))
    assert len(named) > 8
    assert named == told
