"""A Qwen3.5 checkpoint as it is published (vision encoder and MTP head in it) served over HTTP as a text model."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, Qwen3_5Config, Qwen3_5ForConditionalGeneration

from tests.tiny.engine.families import DENSE_HYBRID
from tests.tiny.serving.plain_transformers import Reference
from tests.tiny.serving.served import QSERVE, Service, until

MAX_NUM_SEQS = 8
VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
    "patch_size": 4,
}


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory, demo: Path) -> Path:
    folder = tmp_path_factory.mktemp("hybrid")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(demo / name, folder)
    base = AutoConfig.from_pretrained(demo)
    text = {**DENSE_HYBRID, "vocab_size": base.vocab_size, "eos_token_id": base.eos_token_id}
    torch.manual_seed(5)
    model = Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=text, vision_config=VISION))
    generation = (folder / "generation_config.json").read_text()
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(generation)
    tensors = load_file(folder / "model.safetensors")
    assert any(name.startswith("model.visual.") for name in tensors)
    save_file({**tensors, "mtp.fc.weight": torch.ones(64, 128)}, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def plain(hybrid: Path) -> Reference:
    return Reference.load(hybrid)


@pytest.fixture(scope="module")
def service(hybrid: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    arguments = ("--model", str(hybrid), "--served-model-name", "demo", "--dtype", "float32", "--max-model-len", "512")
    one = Service((*arguments, "--max-num-seqs", str(MAX_NUM_SEQS)), tmp_path_factory.mktemp("state"))
    yield one.until_ready()
    assert one.end() == 0


def ids_of(plain: Reference, index: int) -> list[int]:
    return plain.tokenizer.encode("one two three four five six seven " * (1 + index))[: 5 + 19 * index]


def test_sixteen_at_once_say_what_generate_says(service: Service, plain: Reference) -> None:
    """Twice as many as there are rows; sampled ones and scored prompts among them."""
    asked = [ids_of(plain, index) for index in range(8)]
    expected = [plain.greedy_text(ids, 24) for ids in asked]

    def sampled(seed: int) -> str:
        body = {"prompt": asked[seed], "max_tokens": 20, "temperature": 1.0, "seed": seed, "n": 2}
        return [choice["text"] for choice in service.post("/v1/completions", **body).json()["choices"]]

    def greedy(ids: list[int]) -> str:
        answer = service.post("/v1/completions", prompt=ids, max_tokens=24, temperature=0)
        return answer.json()["choices"][0]["text"]

    alone = [sampled(seed) for seed in range(4)]
    with ThreadPoolExecutor(16) as pool:
        scored = [pool.submit(echoed, service, asked[index]) for index in range(4)]
        drawn = [pool.submit(sampled, seed) for seed in range(4)]
        assert list(pool.map(greedy, asked)) == expected
        assert [one.result() for one in drawn] == alone
        for ids, one in zip(asked, scored, strict=False):
            assert one.result()[1:] == pytest.approx(plain.token_logprobs(ids), abs=1e-4)
    assert service.num_running() == 0


def echoed(service: Service, ids: list[int]) -> list[Any]:
    answer = service.post("/v1/completions", prompt=ids, max_tokens=0, echo=True, logprobs=1)
    return answer.json()["choices"][0]["logprobs"]["token_logprobs"]


def test_it_streams_and_stops_when_the_client_leaves(service: Service) -> None:
    body = {"model": "demo", "prompt": "one two", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{service.url}/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        pieces = [json.loads(next(line for line in lines if line).removeprefix("data: ")) for _ in range(3)]
        assert all(piece["choices"][0]["text"] for piece in pieces)
    until(lambda: service.num_running() == 0, 10, "the sequence of a client that left still runs")


def test_keys_and_states_take_what_was_planned(service: Service, hybrid: Path) -> None:
    flags = [*service.arguments[2:], "--json"]
    flags = [flag for flag in flags if flag not in ("--served-model-name", "demo")]
    plan = json.loads(subprocess.check_output([str(QSERVE), "plan", "--model", str(hybrid), *flags]))
    [worker] = service.get("/v1/qserve/memory").json()["data"]
    assert worker["memory"]["kv_cache_bytes"] == plan["devices"][0]["kv_cache_bytes"]
    assert worker["memory"]["kv_cache_tokens"] == plan["kv_cache_tokens"]
