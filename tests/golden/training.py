"""Training plans against published figures: every training row of measurements.csv and training.csv, as it was run.

Of measurements.csv two tables state enough to be planned: QwenLM/Qwen's README (finetune.py, every sample padded to the
full length) and ms-swift 1.x's Benchmark.md (samples of natural length, torch's max_memory_reserved). training.csv was
collected later and nothing was fitted to it: fms-acceleration's benchmark (torch's max_memory_allocated, packed rows)
and the figures above ms-swift 3's example scripts (whole GiB, packed rows).
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
from qserve.planner.training.fragmentation import cached_bytes
from qserve.planner.training.models import cast_of
from qserve.planner.training.resident import Run
from qserve.units import GIB

__all__ = ["TrainingComparison", "compare_training", "mean_kept_length", "model_parameters", "qwen1_spec"]

FIGURES = (Path(__file__).parent / "measurements.csv", Path(__file__).parent / "training.csv")

# Rows that are not averaged, and why. Those that state enough are planned and shown all the same.
UNTRUSTED = {
    "m0709": "the sequence columns are assumed; two cards of 80 GB nearly full, so the allocator's cache is in it",
    "m0710": "as m0709",
    "m0711": "as m0709: 7 GB more a card for 512 more tokens, ten times what a token needs",
    "t003": "one micro-batch a step: at the loss there are no gradients yet, and the plan counts them",
    "t004": "as t003",
    "t020": "the same 42 as t018 at twice the length: read as taken before the first evaluation, after 33 min",
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
# config.json of https://huggingface.co/mistralai/Mistral-7B-v0.1, NousResearch/Llama-2-70b-hf, Qwen/Qwen2.5-3B, -7B:
# hidden, layers, heads, kv heads, intermediate, vocabulary, tied. Planned as Qwen2, whose biases are 0.003 % more.
_LATER = {
    "mistral-7b": (4096, 32, 32, 8, 14336, 32000, False),
    "llama-2-70b": (8192, 80, 64, 8, 28672, 32000, False),
    "qwen2.5-3b": (2048, 36, 16, 2, 11008, 151936, True),
    "qwen2.5-7b": (3584, 28, 28, 4, 18944, 152064, False),
}
# Before CUDA 11.7's lazy loading every kernel of torch, flash-attn and DeepSpeed was loaded at once.
# Source: torch 2.0 for CUDA 11.8 on an A100, nvidia-smi of an idle process: 1.0 to 1.6 GiB.
_EAGER_CUDA_CONTEXT_BYTES = round(1.3 * GIB)
# Tokens of cls-fudan-news-zh as ms-swift prints them: 3234.4 ± 2547.5, min 91, max 19548; taken as log-normal. What is
# longer than --max_length was deleted (truncation_strategy's default then, and run_single.py sets none:
# https://github.com/modelscope/ms-swift/tree/97e4d198b/scripts/benchmark/test_memory_time): lengths vary in all.
_SWIFT_MEAN, _SWIFT_DEVIATION = 3234.4, 2547.5
_LATER_TRAINERS = ("fms-hf-tuning", "ms-swift 3")


@dataclass(frozen=True)
class TrainingComparison:
    """Planned against measured in the row's own unit; `untrusted` says why a row is not averaged.

    `high` is the upper end of the plan's band, where the figure is of a need (None: of what was reserved, or unknown).
    """

    id: str
    model: str
    what: str
    source: str
    planned: float
    measured: float
    unit: str
    untrusted: str | None = None
    high: float | None = None

    @property
    def error(self) -> float:
        return self.planned / self.measured - 1


def compare_training(*paths: Path) -> Iterator[TrainingComparison | tuple[str, str]]:
    """One comparison a training row, or (row id, why it is not compared); of all figures, or those of `paths`."""
    for path in paths or FIGURES:
        with path.open(newline="") as stream:
            for row in csv.DictReader(stream):
                if row["kind"] != "training":
                    continue
                reason = SKIPPED.get(row["id"])
                if reason is None and _size_of(row["model"]) is None and _later(row["model"]) is None:
                    reason = f"{row['model']}: nobody says here how its source trained"
                yield (row["id"], reason) if reason else _compared(row)


def _compared(row: dict[str, str]) -> TrainingComparison | tuple[str, str]:
    try:
        return _compare(row, json.loads(row["config"]))
    except KeyError as missing:
        return row["id"], f"{missing.args[0]} is not stated"


def mean_kept_length(max_length: int) -> int:
    """Mean of the lengths up to `max_length` in ms-swift's data set."""
    sigma2 = math.log(1 + (_SWIFT_DEVIATION / _SWIFT_MEAN) ** 2)
    mu, sigma = math.log(_SWIFT_MEAN) - sigma2 / 2, math.sqrt(sigma2)
    below, normal = (math.log(max_length) - mu) / sigma, NormalDist()
    kept = normal.cdf(below)
    return max(1, round(_SWIFT_MEAN * normal.cdf(below - sigma) / kept)) if kept else max_length


def _compare(row: dict[str, str], config: dict[str, Any]) -> TrainingComparison:
    swift, trainer = "max_length" in config, config.get("trainer")
    high = None
    if trainer in _LATER_TRAINERS and _later(row["model"]) is not None:
        card, cards = _present(row["model"], config)
        planned, high = card
    else:
        planned, cards = _swift(row["model"], config) if swift else _readme(row["model"], config)
    # The README does not say what its GB are; decimal ones are taken (binary ones would be 7 % more).
    unit_bytes = GIB if row["unit"] == "GiB" else 10**9
    total = planned * (cards if config.get("per") == "sum of GPUs" else 1)
    what = f"{config['method']} {config.get('quant', '')} {config.get('seq', config.get('max_length'))}".replace(
        "  ", " "
    )
    if (batch := config.get("batch", config["micro_batch"] if trainer in _LATER_TRAINERS else 1)) > 1:
        what += f" × {batch}"
    return TrainingComparison(
        row["id"],
        row["model"],
        what,
        trainer if trainer in _LATER_TRAINERS else "ms-swift 1.x" if swift else "QwenLM/Qwen",
        total / unit_bytes,
        float(row["value"]),
        row["unit"],
        UNTRUSTED.get(row["id"]),
        None if high is None else high / unit_bytes,
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
        optimizer="adamw-fused" if stage else "adamw",  # both configurations name AdamW, which DeepSpeed fuses
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
        mean_length=mean_kept_length(config["max_length"]),
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
    devices = parse_gpu("a100-80gb")
    used = _used(spec, request, devices)
    run = Run(request, cast_of(spec, request), 1)
    return used + cached_bytes(run, devices[0].total_bytes - used), 1


def _present(model: str, config: dict[str, Any]) -> tuple[tuple[int, int], int]:
    """((bytes a card, the upper end of its band), cards) of transformers' Trainer, in 16 bit without DeepSpeed."""
    spec, method, cards = _later_spec(model), config["method"], config["num_gpus"]
    is_fms = config["trainer"] == "fms-hf-tuning"
    quant = config.get("quant", "")
    name = "dpo" if method == "DPO" else "sft" if method == "full" else "qlora" if quant == "nf4" else "lora"
    request = TrainingRequest(
        name,  # type: ignore[arg-type]
        micro_batch=config["micro_batch"],
        max_length=config["seq"],
        precision="mixed" if config.get("zero") else "amp" if quant else "pure",
        zero_stage=config.get("zero", 0),
        fsdp=config.get("fsdp", False),
        lora_rank=config.get("lora_rank", 0),
        lora_targets="attention",
        kbit_fp32=config.get("kbit_fp32", "none"),
        fused_loss=config.get("fused_loss", False),
        evaluation=config.get("evaluation", not is_fms),
        runtime_bytes=0 if is_fms else None,
    )
    if "gptq" in quant:
        spec = replace(spec, quantization=CheckpointQuantization("gptq-int4", 4, 128))
    card = plan_training(spec, parse_gpu(f"a100-80gb:{cards}"), request).cards[0]
    terms = {term.name: term for term in card.terms if not (is_fms and term.name == "nccl")}  # torch's own memory
    # transformers 4.48 copies the logits once more when it shifts them, 2 B beyond the peak of later releases.
    shifted = 2 * spec.vocab_size * request.logit_tokens if is_fms and "logits" in terms else 0
    return (
        sum(term.num_bytes for term in terms.values()) + shifted,
        sum(term.high_bytes for term in terms.values()) + shifted,
    ), cards


def _used(spec: ModelSpec, request: TrainingRequest, devices: tuple[Device, ...]) -> int:
    return plan_training(spec, devices, request).cards[0].used_bytes


def _size_of(model: str) -> str | None:
    name = model.lower().replace("_", ".")
    return next((size for size in _QWEN1 if name in (f"qwen-{size}", f"qwen-{size}-chat")), None)


def _later(model: str) -> str | None:
    return next((name for name in _LATER if name in model.lower()), None)


@cache
def _later_spec(model: str) -> ModelSpec:
    hidden, layers, heads, kv_heads, intermediate, vocab, tied = _LATER[str(_later(model))]
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": vocab,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": tied,
    }
    return ModelSpec.from_config(config, model)


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
    return num_parameters(_later_spec(model) if _later(model) else _spec(model))
