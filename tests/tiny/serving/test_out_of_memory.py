"""A worker whose address space is full: what needs more fails with an error that says so, and the worker lives."""

from __future__ import annotations

import itertools
import json
import re
import resource
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoConfig, Qwen3Config, Qwen3ForCausalLM

from qserve.units import MIB
from tests.tiny.serving.served import Service

# So wide that a long prompt needs what a short one does not: 0.25 MiB a token and tensor.
INTERMEDIATE = 65_536
LONG_TOKENS = 1_000
ROOM_BYTES = 160 * MIB


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory, demo: Path) -> Path:
    folder = tmp_path_factory.mktemp("wide")
    base = AutoConfig.from_pretrained(demo)
    config = Qwen3Config(
        vocab_size=base.vocab_size,
        hidden_size=64,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=2048,
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(demo / name, folder)
    return folder


@pytest.fixture(scope="module")
def service(wide: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    arguments = ("--model", str(wide), "--served-model-name", "demo", "--dtype", "float32", "--max-num-seqs", "4")
    environment = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}  # threads made later would take address space too
    one = Service(arguments, tmp_path_factory.mktemp("state"), environment)
    yield one.until_ready()
    assert one.end() == 0


def test_what_needs_more_than_there_is_fails_and_others_go_on(service: Service) -> None:
    starts = itertools.count(1)

    def answer(length: int, **fields: object) -> httpx.Response:
        # Long ones begin differently, so that none finds its prefix in the cache.
        start = 0 if length == 20 else next(starts)
        prompt = [(start + index) % 1000 for index in range(length)]
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
        return service.post("/v1/completions", **body)

    def error_of(response: httpx.Response) -> str:
        assert response.status_code == 503
        error = response.json()["error"]
        assert error["code"] == "out_of_memory"
        return str(error["message"])

    before = answer(20).json()["choices"][0]["text"]
    assert answer(LONG_TOKENS).status_code == 200
    worker = service.worker()
    assert worker is not None
    limit = worker.memory_info().vms + ROOM_BYTES
    resource.prlimit(worker.pid, resource.RLIMIT_AS, (limit, limit))
    with ThreadPoolExecutor(4) as pool:
        short = [pool.submit(answer, 20) for _ in range(3)]
        message = error_of(answer(LONG_TOKENS))
        assert [one.result().json()["choices"][0]["text"] for one in short] == [before] * 3
    read = re.search(r"prefilling (\d+) tokens of its prompt", message)  # those that share the step take some of it
    assert read, message
    assert LONG_TOKENS - 100 < int(read[1]) <= LONG_TOKENS
    assert "you tried to allocate" in message
    assert "--max-num-batched-tokens" in message
    assert f"scoring {LONG_TOKENS} tokens" in error_of(answer(LONG_TOKENS, max_tokens=0, echo=True, logprobs=1))
    assert last_event(service, LONG_TOKENS)["error"]["code"] == "out_of_memory"
    assert answer(20).json()["choices"][0]["text"] == before
    again = service.worker()
    assert again is not None
    assert again.pid == worker.pid
    assert service.is_ready()


def last_event(service: Service, length: int) -> dict[str, dict[str, str]]:
    body = {"model": "demo", "prompt": [7] * length, "max_tokens": 8, "stream": True}
    with httpx.stream("POST", f"{service.url}/v1/completions", json=body, timeout=60) as response:
        lines = [line for line in response.iter_lines() if line]
    event: dict[str, dict[str, str]] = json.loads(lines[-1].removeprefix("data: "))
    return event
