"""One real vLLM with a LoRA adapter, for the whole folder: the adapter is asked first, then the processes are killed.

A service of its own: with LoRA on a CPU, log-probabilities of prompts end vLLM 0.32's engine
(docs/results/log/gateway.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from qserve.demo import chat_model_path
from tests.tiny.serving.served import Service
from tests.tiny.serving.vllm_processes import NOT_COMPILED

FLAGS = ("--max-model-len", "2048", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "64MiB", "--enforce-eager")
_RANK = 4


def _write_adapter(folder: Path) -> Path:
    """A LoRA adapter over the demo's first attention, with random weights large enough to change answers."""
    config = json.loads((chat_model_path() / "config.json").read_text())
    num_rows = config["num_attention_heads"] * config["head_dim"]
    torch.manual_seed(0)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    folder.mkdir()
    save_file(
        {f"{name}A.weight": torch.randn(_RANK, config["hidden_size"]), f"{name}B.weight": torch.randn(num_rows, _RANK)},
        folder / "adapter_model.safetensors",
    )
    described = {"peft_type": "LORA", "r": _RANK, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps({**described, "task_type": "CAUSAL_LM"}))
    return folder


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("vllm-lora")
    adapter = _write_adapter(folder / "adapter")
    lora = ("--engine-args", f"--enable-lora --max-lora-rank 8 --lora-modules tuned={adapter}")
    # The worker in a process of its own, as several ranks have it: elsewhere it shares the engine's.
    apart = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", **NOT_COMPILED}
    one = Service(("--model", "demo", "--engine", "vllm", *FLAGS, *lora), folder / "service", apart)
    yield one.until_ready()
    one.end()
