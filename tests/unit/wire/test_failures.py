"""What an engine says by a code alone gets its HTTP status here, and nowhere else."""

from __future__ import annotations

import json

import pytest

from qserve.model.failures import EngineError, PromptRefused, SequenceFailed
from qserve.reward.failures import TextRefused
from qserve.wire.errors import from_engine, from_failure


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("out_of_memory", 503),
        ("context_length_exceeded", 400),
        ("empty_prompt", 400),
        ("generation_failed", 500),
        ("worker_stopping", 503),
        ("no_steps", 400),
        ("judge_unparsable", 502),
    ],
)
def test_a_code_has_its_status(code: str, status: int) -> None:
    error = from_failure(code, "why", "messages")
    assert (error.status, error.code, error.param) == (status, code, "messages")
    assert json.loads(error.body())["error"]["type"] == ("invalid_request_error" if status < 500 else "server_error")


@pytest.mark.parametrize("code", ["judge_failed", "worker_unreachable"])
def test_who_is_not_there_may_be_asked_again(code: str) -> None:
    assert from_failure(code, "why").headers == {"retry-after": "5"}


def test_an_error_of_the_engine_has_no_status() -> None:
    for error in (
        EngineError("x"),
        SequenceFailed("x"),
        PromptRefused("x", "empty_prompt", "prompt"),
        TextRefused("x", "y"),
    ):
        assert not hasattr(error, "status")


@pytest.mark.parametrize(
    ("said", "code", "message"),
    [
        ("1 validation error:\n  {'type': 'value_error', 'loc': 'body', 'msg': 'Value error, a must be less than b', "
         "'input': '<dict of 6 items>', 'ctx': {'error': ValueError('a must be less than b')}}",
         "invalid_value", "a must be less than b"),
        ("2 validation errors:\n  {'type': 'missing', 'loc': 'body.a.0.name', 'msg': 'Field required', 'input': 'x'}"
         "\n  {'type': 'literal_error', 'loc': 'body.b', 'msg': \"Input should be 'x' or 'y'\", 'input': 'z'}",
         "invalid_value", "'a.0.name': Field required; 'b': Input should be 'x' or 'y'"),
        ("Failed to transform regex into a grammar: [09:47:32] <path>:83: Regex parsing error at position 3: no end",
         "invalid_grammar", "Failed to transform regex into a grammar: Regex parsing error at position 3: no end"),
    ],
    ids=["a validator's", "pydantic's", "xgrammar's"],
)  # fmt: skip
def test_an_error_of_vllm_has_no_python_in_it(said: str, code: str, message: str) -> None:
    error = from_engine(400, json.dumps({"error": {"message": said, "param": None, "code": 400}}).encode())
    assert error is not None and (error.status, error.code, error.message) == (400, code, message)
