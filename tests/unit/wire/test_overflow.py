"""What does not fit is said in the words by which clients know it, with true numbers.

The patterns are those of the clients' own sources, by public repository:

    litellm    BerriAI/litellm, litellm_core_utils/exception_mapping_utils.py (main, 2026-08): substrings, lower case
    inspect    UKGovernmentBEIS/inspect_ai 499e6152, model/_openai.py and model/_providers/anthropic.py
    langchain  langchain-ai/langchain, partners/openai and partners/anthropic: `ContextOverflowError`
    opencode   anomalyco/opencode, packages/opencode/src/provider/error.ts: OVERFLOW_PATTERNS
    cline      cline/cline 21cb8d25, sdk/packages/llms/src/providers/error-classification.ts
    claude     what Claude Code's releases read out of "prompt is too long" and of a limit that max_tokens exceeds
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qserve.engines.vllm.wire.errors import error_of
from qserve.reward.failures import too_long as text_too_long
from qserve.wire.errors import ApiError, Dialect, from_failure
from qserve.wire.openai import ChatCompletionRequest
from qserve.wire.overflow import Overflow
from qserve.wire.prompt_size import ContextLimits

Error = Mapping[str, Any]


def _has(pattern: str) -> Callable[[Error], bool]:
    return lambda error: re.search(pattern, error["message"], re.IGNORECASE) is not None


_OF_CLINE = _has(r"\bcontext\s*(?:length|window|limit)\b|\bprompt\s+is\s+too\s+long\b")
_NOT_OF_CLINE = _has(r"rate[\s_-]?limit|per[\s_-]?minute\b")
OPENAI: Mapping[str, Callable[[Error], bool]] = {
    "litellm": lambda error: "this model's maximum context length is" in str(error).lower(),
    "litellm, no rate limit": lambda error: re.search(r"rate[\s_\-]*limit", str(error).lower()) is None,
    "inspect": lambda error: error["code"] == "context_length_exceeded",
    "langchain": lambda error: "context_length_exceeded" in str(error),
    "opencode": _has(r"maximum context length is \d+ tokens"),
    "cline": lambda error: _OF_CLINE(error) and not _NOT_OF_CLINE(error),
}
ANTHROPIC: Mapping[str, Callable[[Error], bool]] = {
    "litellm": _has(r"prompt is too long"),
    "inspect": _has(r"prompt is too long"),
    "langchain": lambda error: "prompt is too long" in error["message"],
    "opencode": _has(r"prompt is too long"),
    "cline": lambda error: _OF_CLINE(error) and not _NOT_OF_CLINE(error),
    "claude": _has(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)"),
}


def hold(error: ApiError, num_tokens: int, limit: int) -> None:
    """Every client knows it on both APIs, by the numbers that it has."""
    said = json.loads(error.body(Dialect.OPENAI))["error"]
    assert (error.status, said["code"]) == (400, "context_length_exceeded")
    assert [name for name, knows in OPENAI.items() if not knows(said)] == []
    assert said["message"].startswith(f"This model's maximum context length is {limit} tokens. However, ")
    assert str(num_tokens) in said["message"]
    anthropic = json.loads(error.body(Dialect.ANTHROPIC))["error"]
    assert [name for name, knows in ANTHROPIC.items() if not knows(anthropic)] == []
    assert anthropic["type"] == "invalid_request_error"
    assert anthropic["message"].startswith(f"prompt is too long: {num_tokens} tokens > {limit} maximum")
    assert ApiError(**error.fields).body(Dialect.ANTHROPIC) == error.body(Dialect.ANTHROPIC)


LIMITS = st.integers(1, 10**6)


@given(limit=LIMITS, num_tokens=st.integers(1, 10**7), max_tokens=st.none() | st.integers(1, 10**7))
def test_whatever_the_numbers_are(limit: int, num_tokens: int, max_tokens: int | None) -> None:
    if num_tokens + (max_tokens or 1) <= limit:
        return
    error = ContextLimits(limit).too_long(num_tokens, max_tokens=max_tokens)
    total = num_tokens if num_tokens > limit else num_tokens + (max_tokens or 1)
    assert total > limit
    hold(error, total, limit)
    lowered = re.search(r"exceed context limit: (\d+) \+ (\d+) > (\d+)", error.for_anthropic or "")
    assert (lowered is not None) == (num_tokens <= limit), "Claude Code lowers max_tokens where that helps"
    if lowered is not None:
        assert tuple(map(int, lowered.groups())) == (num_tokens, max_tokens or 1, limit)


@given(limit=st.integers(1, 1000), longest=st.integers(1, 20), beyond=st.integers(1, 5000))
def test_characters_that_cannot_fit(limit: int, longest: int, beyond: int) -> None:
    """No token is counted yet: the number is the least that there can be."""
    num_bytes = limit * longest + beyond
    with pytest.raises(ApiError) as caught:
        ContextLimits(limit, limit * longest).check([{"role": "user", "content": "x" * num_bytes}])
    at_least = -(-num_bytes // longest)
    hold(caught.value, at_least, limit)
    assert "at least" in caught.value.message and "at least" in (caught.value.for_anthropic or "")


@pytest.mark.parametrize(
    ("said", "num_tokens"),
    [
        (
            "This model's maximum context length is 64 tokens. However, your prompt contains 900 characters (more than "
            "640 characters, which is the upper bound for 64 input tokens). Please reduce the length of the input "
            "prompt. (parameter=input_text, value=900)",
            90,
        ),
        (
            "This model's maximum context length is 64 tokens. However, your prompt contains at least 65 input tokens, "
            "which exceeds this limit even without any output tokens. Please reduce it. (parameter=input_tokens)",
            65,
        ),
        (
            "This model's maximum context length is 64 tokens. However, your prompt contains 90 input tokens, which "
            "exceeds this limit even without any output tokens.",
            90,
        ),
        ("max_completion_tokens=900 cannot be greater than max_model_len=64. Please request fewer output tokens.", 900),
        ("The engine prompt length 70 exceeds the max_model_len 64. Please reduce prompt.", 70),
        ("Input length (90) exceeds model's maximum context length (64).", 90),
        ("The decoder prompt (length 90) is longer than the maximum model length of 64. Make sure that", 90),
        (
            "The decoder prompt (length 64) plus the number of requested output tokens (at least 1) is longer than the "
            "maximum model length of 64. Make sure",
            65,
        ),
    ],
)
def test_vllms_own_words(said: str, num_tokens: int) -> None:
    body = json.dumps({"error": {"message": said, "type": "BadRequestError", "param": None, "code": 400}}).encode()
    error = error_of(400, body)
    assert error is not None
    hold(error, num_tokens, 64)


def test_a_text_that_is_too_long_for_a_reward_model() -> None:
    refused = text_too_long(5000, 4096)
    message = from_failure(refused.code, str(refused), refused.param).message
    assert message.startswith("This model's maximum context length is 4096 tokens. However, your text has 5000 tokens")
    assert "--max-length" in message


def test_other_errors_of_vllm_stay_as_they_are() -> None:
    body = json.dumps({"error": {"message": "temperature must be non-negative", "param": "temperature"}}).encode()
    error = error_of(400, body)
    assert error is not None and (error.code, error.for_anthropic) == ("invalid_value", None)


def test_token_ids_and_texts_of_a_list() -> None:
    request = ChatCompletionRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "x" * 99}]})
    for prompt, num_tokens in (([1] * 70, 70), (["a", "x" * 99], 99), (request.messages, 99)):
        with pytest.raises(ApiError) as caught:
            ContextLimits(64, 64).check(prompt)
        hold(caught.value, num_tokens, 64)


def test_a_limit_of_the_answer_alone() -> None:
    assert Overflow(64, 0, 900).for_openai().endswith("900 tokens in the completion alone (max_tokens)")
