"""What an engine says by a code alone gets its HTTP status here, and nowhere else."""

from __future__ import annotations

import json

import pytest

from qserve.model.failures import EngineError, PromptRefused, SequenceFailed
from qserve.reward.failures import TextRefused
from qserve.wire.errors import from_failure


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
