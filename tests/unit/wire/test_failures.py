"""What an engine says by a code alone gets its HTTP status here, and nowhere else."""

from __future__ import annotations

import json

import pytest

from qserve.engines.vllm.wire.errors import error_of
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


@pytest.mark.parametrize(
    ("said", "code", "message"),
    [
        (
            "1 validation error:\n  {'type': 'value_error', 'loc': 'body', 'msg': 'Value error, a must be less than b'"
            ", 'input': '<dict of 6 items>', 'ctx': {'error': ValueError('a must be less than b')}}",
            "invalid_value",
            "a must be less than b",
        ),
        (
            "2 validation errors:\n  {'type': 'missing', 'loc': 'body.a.0.name', 'msg': 'Field required', 'input': 'x'}"
            "\n  {'type': 'literal_error', 'loc': 'body.b', 'msg': \"Input should be 'x' or 'y'\", 'input': 'z'}",
            "invalid_value",
            "'a.0.name' is missing; 'b': 'x' or 'y' is needed",
        ),
        (
            "Failed to transform regex into a grammar: [09:47:32] <path>:83: Regex parsing error at position 3: no end",
            "invalid_grammar",
            "Failed to transform regex into a grammar: Regex parsing error at position 3: no end",
        ),
    ],
    ids=["a validator's", "pydantic's", "xgrammar's"],
)
def test_an_error_of_vllm_has_no_python_in_it(said: str, code: str, message: str) -> None:
    error = error_of(400, json.dumps({"error": {"message": said, "param": None, "code": 400}}).encode())
    assert error is not None and (error.status, error.code, error.message) == (400, code, message)


def _problems(*problems: tuple[str, str]) -> str:
    lines = (f"  {{'type': 'x', 'loc': 'body.{place}', 'msg': {said!r}, 'input': 'x'}}" for place, said in problems)
    return f"{len(problems)} validation errors:\n" + "\n".join(lines)


@pytest.mark.parametrize(
    ("said", "message", "param"),
    [
        ("top_p must be in (0, 1]. (parameter=top_p, value=0.0)", "top_p must be in (0, 1].", "top_p"),
        ("`stop` is no `list` (parameter=stop, value=[')'])", "'stop' is no 'list'", "stop"),
        (
            "n must be 1 when using greedy sampling, got 2.",
            "'n' is 2: vLLM gives one answer where 'temperature' is 0; raise it, or ask for one",
            "n",
        ),
        (
            "When using `tool_choice`, `tools` must be set. (parameter=tool_choice)",
            "'tool_choice' asks for a tool, and 'tools' has none",
            "tool_choice",
        ),
        (
            _problems(("temperature", "Input should be a valid number, unable to parse string as a number")),
            "'temperature': a valid number is needed",
            "temperature",
        ),
        (
            _problems(
                ("tools.0.FileTool.type", "Input should be 'file_search'"),
                ("tools.0.FileTool.x", "Field required"),
                ("tools.0.FunctionTool.name", "Field required"),
            ),
            "'tools.0.name' is missing",
            "tools.0.name",
        ),
        (
            _problems(
                ("m.0.AParam.role", "Field required"),
                ("m.0.AParam.content", "Field required"),
                ("m.0.BParam.role", "Field required"),
            ),
            "'m.0.role' is missing",
            "m.0.role",
        ),
    ],
)
def test_an_error_of_vllm_says_what_to_do(said: str, message: str, param: str) -> None:
    error = error_of(400, json.dumps({"error": {"message": said, "param": None, "code": 400}}).encode())
    assert error is not None and (error.message, error.param) == (message, param)


def test_tools_that_no_call_can_follow_are_a_structure() -> None:
    body = {"error": {"message": "Invalid structural tag specification.", "param": None, "code": 400}}
    error = error_of(400, json.dumps(body).encode())
    assert error is not None and error.code == "invalid_grammar" and "'parameters'" in error.message
