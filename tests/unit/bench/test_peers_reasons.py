"""A failure of a peer's test has a reason by what it says: no rule takes what nobody has looked at."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.peers.reasons import reason_of

PAGE = (Path(__file__).parents[3] / "docs/results/peers-suites.md").read_text()
NAMES = sorted(set(re.findall(r"`(test_\w+)`", PAGE)))


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
@pytest.mark.parametrize("name", NAMES)
def test_a_new_failure_of_a_known_test_has_no_reason(engine: str, name: str) -> None:
    for file in (
        "vllm/openai/chat_completion/test_chat.py",
        "vllm/pooling/classify/test_online.py",
        "sglang/basic/x.py",
    ):
        for said in (
            "AssertionError: assert 'a' == 'b'",
            "openai.InternalServerError: Error code: 500 - internal error",
        ):
            assert reason_of(engine, f"{file}::{name}", said) is None


def test_a_field_that_one_engine_alone_refuses_has_a_reason_there() -> None:
    said = "Error code: 400 - 'use_beam_search' is not supported: the transformers engine has no such field"
    assert reason_of("transformers", "vllm/x.py::test_batch_completions", said) is not None
    assert reason_of("vllm", "vllm/x.py::test_batch_completions", said) is None
