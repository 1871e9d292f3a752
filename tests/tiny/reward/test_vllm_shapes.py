"""What is answered in vLLM's place is what vLLM's own models of its answers hold, `meta` aside."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tiny.reward.conftest import Opener
from tests.tiny.reward.host import Host

REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    ("classify", "/classify", {"model": "rm", "input": ["a", "b"], "use_activation": False}),
    (
        "classify",
        "/classify",
        {"model": "rm", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
    ),
    ("pooling", "/pooling", {"model": "rm", "input": [[40, 41], [42]], "task": "classify"}),
    ("pooling", "/pooling", {"model": "rm", "input": "a b c", "task": "token_classify"}),
    ("score", "/score", {"model": "rm", "queries": "q", "documents": ["a", "b"]}),
    ("score", "/v1/score", {"model": "rm", "text_1": ["p", "q"], "text_2": ["a", "b"]}),
    ("rerank", "/rerank", {"model": "rm", "query": "q", "documents": ["a", "b"], "top_n": 1}),
]


@pytest.fixture
def host(opened: Opener) -> Iterator[Host]:
    one = Host(opened("sequence-classification", truncate="left"))
    yield one
    one.close()


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_reads_the_requests_and_the_answers_as_its_own(host: Host) -> None:
    lines = [
        json.dumps({"name": name, "request": body, "answer": host.post(path, **body)}) for name, path, body in REQUESTS
    ]
    script = Path(__file__).with_name("vllm_shapes.py")
    done = subprocess.run(
        [sys.executable, str(script)], input="\n".join(lines), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [json.loads(line) for line in done.stdout.splitlines()[-len(REQUESTS) :]] == [["meta"]] * len(REQUESTS)
