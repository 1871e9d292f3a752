"""A long prompt of a large vocabulary is scored in pieces: full logits would need far more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.random_checkpoint import SHAPES, write_checkpoint
from qserve.units import MIB
from tests.tiny.serving.served import Service

VOCABULARY = 151_936
PROMPT_TOKENS = 1_200
FULL_LOGITS_BYTES = PROMPT_TOKENS * VOCABULARY * 4
BOUND_BYTES = 400 * MIB


@pytest.fixture(scope="module")
def large_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    SHAPES["tiny-qwen-vocabulary"] = {**SHAPES["tiny"], "vocab_size": VOCABULARY}
    return write_checkpoint(tmp_path_factory.mktemp("large-vocabulary"), "tiny-qwen-vocabulary")


def test_scoring_a_long_prompt(large_vocabulary: Path, start: Callable[..., Service]) -> None:
    arguments = ("--served-model-name", "demo", "--max-model-len", "4096", "--max-num-seqs", "4")
    service = start(*arguments, model=str(large_vocabulary)).until_ready()
    worker = service.worker()
    assert worker is not None
    before = worker.memory_info().rss
    Path(f"/proc/{worker.pid}/clear_refs").write_text("5")  # the peak begins anew
    prompt = [index % 1000 for index in range(PROMPT_TOKENS)]
    answer = service.post("/v1/completions", prompt=prompt, max_tokens=1, echo=True, logprobs=1, temperature=0)
    assert len(answer.json()["choices"][0]["logprobs"]["tokens"]) == PROMPT_TOKENS + 1
    status = Path(f"/proc/{worker.pid}/status").read_text()
    peak = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024
    print(f"peak grew by {(peak - before) / MIB:.0f} MiB; full logits would be {FULL_LOGITS_BYTES / MIB:.0f} MiB")
    assert FULL_LOGITS_BYTES > 1.5 * BOUND_BYTES
    assert peak - before < BOUND_BYTES
