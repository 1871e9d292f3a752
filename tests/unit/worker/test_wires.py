"""A prompt that can't fit is refused by the length of its body, however it is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qserve.wire.errors import ApiError
from qserve.wire.openai import CompletionRequest
from qserve.worker.base import UnixAddress, WorkerFacts
from qserve.worker.wires import BySchema

READER = BySchema(CompletionRequest, lambda request: 1)


def _refusal(check):
    try:
        check()
    except ApiError as error:
        return error.message
    return None


@given(
    st.one_of(st.text(min_size=1), st.lists(st.integers(0, 9), min_size=1, max_size=200), st.just(["é" * 40])),
    st.integers(1, 300),
    st.none() | st.integers(1, 600),
    st.booleans(),
)
def test_it_is_refused_as_the_whole_check_refuses_it(prompt, max_model_len, max_prompt_bytes, is_ascii):
    facts = WorkerFacts("chat", ("m",), UnixAddress(Path()), "", 1, max_model_len, max_prompt_bytes=max_prompt_bytes)
    body = json.dumps({"model": "m", "prompt": prompt}, ensure_ascii=is_ascii, separators=(",", ":"))
    refusal = _refusal(lambda: facts.context.check(prompt))
    assert _refusal(lambda: READER.read(body.encode(errors="surrogatepass"), "/v1/completions", facts)) == refusal


@pytest.mark.parametrize("num_tokens", [40, 41])
def test_token_ids_are_counted(num_tokens):
    facts = WorkerFacts("chat", ("m",), UnixAddress(Path()), "", 1, 40)
    body = json.dumps({"model": "m", "prompt": [1] * num_tokens}).encode()
    refusal = _refusal(lambda: READER.read(body, "/v1/completions", facts))
    assert (refusal is not None) == (num_tokens > 40)
