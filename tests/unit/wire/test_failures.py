"""What an engine says by a code alone gets its HTTP status here, and nowhere else."""

from __future__ import annotations

import json

import pytest

from qserve.model.failures import EngineError, PromptRefused, SequenceFailed
from qserve.wire.errors import from_failure


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("out_of_memory", 503),
        ("context_length_exceeded", 400),
        ("empty_prompt", 400),
        ("generation_failed", 500),
        ("worker_stopping", 503),
    ],
)
def test_a_code_has_its_status(code: str, status: int) -> None:
    error = from_failure(code, "why", "messages")
    assert (error.status, error.code, error.param) == (status, code, "messages")
    assert json.loads(error.body())["error"]["type"] == ("invalid_request_error" if status < 500 else "server_error")


def test_an_error_of_the_engine_has_no_status() -> None:
    for error in (EngineError("x"), SequenceFailed("x"), PromptRefused("x", "empty_prompt", "prompt")):
        assert not hasattr(error, "status")
