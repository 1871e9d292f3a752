"""Training plans against published figures: every training row of measurements.csv, as its source ran it.

Two tables carry all rows that state enough to be planned: QwenLM/Qwen's README (finetune.py, every sample padded to
the full length) and ms-swift 1.x's Benchmark.md (samples of natural length, torch's max_memory_reserved).
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

from qserve.core.dimensions import num_parameters
from qserve.core.hardware import Device, parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.planner.training import TrainingRequest, plan_training
from qserve.units import GIB

__all__ = ["TrainingComparison", "compare_training", "mean_clipped_length", "model_parameters", "qwen1_spec"]

FIGURES = Path(__file__).parent / "measurements.csv"

# Rows that are not averaged, and why. Those that state enough are planned and shown all the same.
UNTRUSTED = {
    "m0709": "the sequence columns are assumed; two cards of 80 GB nearly full, so the allocator's cache is in it",
    "m0710": "as m0709",
    "m0711": "as m0709: 7 GB more a card for 512 more tokens, ten times what a token needs",
}
SKIPPED = {
    "m0476": "a prefill without gradients: inference, not training",
    "m0477": "a prefill without gradients: inference, not training",
    "m0779": "length, micro-batch and number of cards are not stated beside the figure",
    "m0782": "length, micro-batch and parallel sizes of the Megatron run are not stated",
    "m0784": "length and micro-batch are not stated, and 80 GiB is the card, not the need",
    "m0789": "a vendor's claim for kernels of its own",
    "m0790": "a vendor's claim for kernels of its own",
    "m0791": "a vendor's claim for kernels of its own",
    "m0792": "a vendor's claim for kernels of its own",
    "m0793": "a vendor's claim for kernels of its own",
    "n0130": "micro-batch and length are not stated",
    "n0135": "micro-batch and length are not stated",
}

# Qwen (1): config.json of https://huggingface.co/Qwen/Qwen-1_8B, Qwen-7B, Qwen-14B.
_QWEN1 = {
    "1.8b": (2048, 24, 16, 11008, 151936),
    "7b": (4096, 32, 32, 22016, 151936),
    "14b": (5120, 40, 40, 27392, 152064),
    "72b": (8192, 80, 64, 49152, 152064),
}
# Before CUDA 11.7's lazy loading every kernel of torch, flash-attn and DeepSpeed was loaded at once.
# Source: torch 2.0 for CUDA 11.8 on an A100, nvidia-smi of an idle process: 1.0 to 1.6 GiB.
_EAGER_CUDA_CONTEXT_BYTES = round(1.3 * GIB)
# Tokens of cls-fudan-news-zh as ms-swift prints them: 3234.4 ± 2547.5, min 91, max 19548; taken as log-normal.
_SWIFT_MEAN, _SWIFT_DEVIATION = 3234.4, 2547.5


@dataclass(frozen=True)
class TrainingComparison:
    """Planned against measured in the row's own unit; `untrusted` says why a row is not averaged."""

    id: str
    model: str
    what: str
    source: str
    planned: float
    measured: float
    unit: str
    untrusted: str | None = None

    @property
    def error(self) -> float:
        return self.planned / self.measured - 1


def compare_training(path: Path = FIGURES) -> Iterator[TrainingComparison | tuple[str, str]]:
    """One comparison a training row, or (row id, why it is not compared)."""
    with path.open(newline="") as stream:
        for row in csv.DictReader(stream):
            if row["kind"] != "training":
                continue
            reason = SKIPPED.get(row["id"])
            if reason is None and _size_of(row["model"]) is None:
                reason = f"{row['model']}: nobody says here how its source trained"
            yield (row["id"], reason) if reason else _compared(row)


def _compared(row: dict[str, str]) -> TrainingComparison | tuple[str, str]:
    try:
        return _compare(row, json.loads(row["config"]))
    except KeyError as missing:
        return row["id"], f"{missing.args[0]} is not stated"


def mean_clipped_length(max_length: int) -> int:
    """Mean of min(length, max_length) over ms-swift's data set."""
    sigma2 = math.log(1 + (_SWIFT_DEVIATION / _SWIFT_MEAN) ** 2)
    mu, sigma = math.log(_SWIFT_MEAN) - sigma2 / 2, math.sqrt(sigma2)
    below, normal = math.log(max_length) - mu, NormalDist()
    shorter = _SWIFT_MEAN * normal.cdf(below / sigma - sigma)
    return round(shorter + max_length * (1 - normal.cdf(below / sigma)))


def _compare(row: dict[str, str], config: dict[str, Any]) -> TrainingComparison:
    swift = "max_length" in config
    planned, cards = _swift(row["model"], config) if swift else _readme(row["model"], config)
    # The README does not say what its GB are; decimal ones are taken (binary ones would be 7 % more).
    unit_bytes = GIB if row["unit"] == "GiB" else 10**9
    total = planned * (cards if config.get("per") == "sum of GPUs" else 1)
    what = f"{config['method']} {config.get('quant', '')} {config.get('seq', config.get('max_length'))}".replace(
        "  ", " "
    )
    if config.get("batch", 1) > 1:
        what += f" × {config['batch']}"
    return TrainingComparison(
        row["id"],
        row["model"],
        what,
        "ms-swift 1.x" if swift else "QwenLM/Qwen",
        total / unit_bytes,
        float(row["value"]),
        row["unit"],
        UNTRUSTED.get(row["id"]),
    )


def _readme(model: str, config: dict[str, Any]) -> tuple[int, int]:
    """(bytes a card, cards): finetune.py with LoRA rank 64 on all projections, DeepSpeed for Q-LoRA and full."""
    spec, method, cards = _spec(model), config["method"], config["num_gpus"]
    # finetune_ds.sh takes ZeRO-3; the scripts for one card name ds_config_zero2.json, and plain LoRA goes without.
    stage = 3 if cards > 1 else 0 if method.startswith("LoRA") else 2
    request = TrainingRequest(
        "sft" if method == "full" else "lora",
        micro_batch=config["micro_batch"],
        max_length=config["seq"],
        precision="pure" if method.startswith("LoRA") else "mixed",
        zero_stage=stage,
        lora_rank=0 if method == "full" else 64,
        train_embeddings=method == "LoRA(emb)",
        upcast_logits=stage == 0,  # DeepSpeed runs without autocast, and Qwen's remote code does not upcast
        runtime_bytes=_EAGER_CUDA_CONTEXT_BYTES,
    )
    if method == "Q-LoRA":
        spec = replace(spec, quantization=CheckpointQuantization("gptq-int4", 4, 128))
    return _used(spec, request, parse_gpu(f"a100-80gb:{cards}")), cards


def _swift(model: str, config: dict[str, Any]) -> tuple[int, int]:
    """ms-swift 1.x: everything in 16 bit, LoRA rank 8 on c_attn, torch's reserved memory (no context)."""
    spec, full, quant = _spec(model), config["method"] == "full", config.get("quant")
    request = TrainingRequest(
        "sft" if full else "lora",
        micro_batch=config["batch"],
        max_length=config["max_length"],
        mean_length=mean_clipped_length(config["max_length"]),
        gradient_checkpointing=config["gradient_checkpointing"],
        precision="pure",
        lora_rank=0 if full else int(str(config.get("lora_rank", 8)).split()[0]),
        lora_targets="all-linear" if "ALL" in str(config.get("lora_rank")) else "qkv",
        attention="sdpa" if config["flash_attn"] else "eager",
        runtime_bytes=0,
    )
    if quant:
        bits = 8 if "int8" in quant else 4
        spec = replace(spec, quantization=CheckpointQuantization(f"gptq-int{bits}", bits, 128))
    return _used(spec, request, parse_gpu("a100-80gb")), 1


def _used(spec: ModelSpec, request: TrainingRequest, devices: tuple[Device, ...]) -> int:
    return plan_training(spec, devices, request).cards[0].used_bytes


def _size_of(model: str) -> str | None:
    name = model.lower().replace("_", ".")
    return next((size for size in _QWEN1 if name in (f"qwen-{size}", f"qwen-{size}-chat")), None)


@cache
def _spec(model: str) -> ModelSpec:
    hidden, layers, heads, intermediate, vocab = _QWEN1[str(_size_of(model))]
    config = {
        "architectures": ["QWenLMHeadModel"],
        "model_type": "qwen",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
        "vocab_size": vocab,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    }
    return ModelSpec.from_config(config, model)


def qwen1_spec(model: str) -> ModelSpec:
    """Of a model of the first generation by a row's name of it."""
    return _spec(model)


def model_parameters(model: str) -> int:
    """Parameters of a row's model."""
    return num_parameters(_spec(model))
