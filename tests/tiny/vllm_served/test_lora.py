"""A LoRA adapter of vLLM is a model of its own: listed, asked by its name, told from the base.

A service of its own: with LoRA on a CPU, log-probabilities of prompts end vLLM 0.32's engine (docs/results/LOG.md).
"""

from __future__ import annotations

import json
from pathlib import Path

import openai
import torch
from safetensors.torch import save_file

from qserve.demo import chat_model_path
from tests.tiny.serving.served import Service

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


def test_an_adapter_is_a_model_of_its_own(tmp_path: Path) -> None:
    adapter = _write_adapter(tmp_path / "adapter")
    flags = ("--max-model-len", "256", "--max-num-seqs", "2", "--kv-cache-memory-bytes", "16MiB", "--enforce-eager")
    lora = ("--engine-args", f"--enable-lora --max-lora-rank 8 --lora-modules tuned={adapter}")
    service = Service(("--model", "demo", "--engine", "vllm", *flags, *lora), tmp_path / "service")
    try:
        service.until_ready()
        with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
            cards = {card.id: card for card in client.models.list()}
            assert (
                set(cards) == {"demo", "tuned"} and cards["tuned"].parent == "demo" and cards["tuned"].root == "tuned"
            )
            asked = {
                "prompt": "What is 17 + 25?",
                "max_tokens": 8,
                "temperature": 0,
                "extra_body": {"ignore_eos": True},
            }
            of_base, of_adapter = (client.completions.create(model=name, **asked) for name in ("demo", "tuned"))
        assert of_adapter.model == "tuned" and of_base.choices[0].text != of_adapter.choices[0].text
        counted = 'qserve_gateway_requests_total{model="tuned",route="/v1/completions",status="200"} 1.0'
        assert counted in service.get("/metrics").text
    finally:
        assert service.end() == 0, service.output
