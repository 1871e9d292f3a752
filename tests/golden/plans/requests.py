"""The command lines: every model, scheme and card of the tables, releases, flags, refusals, shares and training."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from qserve.core import facts
from qserve.core.schemes import FAMILIES, SCHEMES

__all__ = ["requests"]

_SEED = 16
_RELEASES = (
    "0.5.0",
    "0.6.4",
    "0.7.3",
    "0.8.5",
    "0.9.2",
    "0.10.2",
    "0.11.0",
    "0.13.0",
    "0.15.1",
    "0.16.0",
    "0.17.0",
    "0.19.0",
    "0.20.2",
    "0.21.0",
    "0.22.0",
    "0.24.0",
    "0.25.1",
    "0.26.0",
    "0.27.0",
    "0.28.0",
    "0.29.0",
    "0.31.0",
    "0.33.0",
)
_FLAGS = (
    "--enforce-eager",
    "--max-num-seqs 8",
    "--max-num-seqs 1024",
    "--max-num-batched-tokens 16384",
    "--gpu-memory-utilization 0.7",
    "--kv-cache-dtype fp8",
    "--kv-cache-dtype fp8_per_token_head",
    "--prompt-logprobs",
    "--warm-compile-cache",
    "--no-enable-prefix-caching",
    "--block-size 32",
    "--kv-cache-memory-bytes 2GiB",
    "--max-model-len 4096",
    "--max-model-len 131072",
    "--dtype float16",
    "--enable-lora",
    "--enable-lora --max-loras 4 --max-lora-rank 64 --lora-target-modules q_proj,v_proj",
    "--enable-lora --fully-sharded-loras --max-loras 8",
    "--num-speculative-tokens 3",
    "--language-model-only",
    """--limit-mm-per-prompt '{"image": 2, "video": 0}'""",
    """--mm-processor-kwargs '{"max_pixels": 501760}'""",
    "--skip-mm-profiling",
    "--mamba-ssm-cache-dtype bfloat16",
    "--engine-version 0.19.0 --enable-lora",
)
_TRANSFORMERS_FLAGS = (
    "",
    "--prompt-logprobs",
    "--offload cpu",
    "--offload disk",
    "--device-map balanced",
    "--device-map sequential",
    "--max-memory 0=12GiB,cpu=64GiB",
    "--max-num-seqs 4 --max-model-len 8192",
    "--engine-version 4.46.0",
    "--engine-version 4.51.3 --max-model-len 8192 --prompt-len 6144",
    "--engine-version 4.40.0 --prompt-len 2048",
    "--kv-cache-memory-bytes 1GiB",
    "--quant 4bit",
    "--quant int8",
    "--max-num-batched-tokens 8192",
)
_REFUSED = (
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --engine transformers --enforce-eager",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --engine vllm --offload cpu",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --max-model-len 999999",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --block-size 17",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --max-num-seqs 512 --max-num-batched-tokens 256",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --num-speculative-tokens 2",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --quant mxfp9",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --tensor-parallel-size 2",
    "--model Qwen/Qwen3-8B --gpu rtx-4090:3 --tensor-parallel-size 3",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --engine-version 0.4.0",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --engine-version 5.19.0",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --engine transformers --engine-version 0.32.0",
    "--model Qwen/Qwen3-VL-8B-Instruct --gpu rtx-4090 --engine-version 0.9.0",
    "--model Qwen/Qwen3-8B --gpu v100-16gb --kv-cache-dtype fp8",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --kv-cache-dtype int3",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --dtype float8",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --max-loras 2",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --enable-lora --max-lora-rank 17",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --enable-lora --lora-target-modules nothing_proj",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --limit-mm-per-prompt [1]",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --max-memory 0",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --prompt-len 9000 --max-model-len 8192",
    "--model Qwen/Qwen3-8B-AWQ --gpu rtx-4090 --quant fp8",
    "--model Qwen/Qwen3-8B-FP8 --gpu v100-16gb",
    "--model Qwen/Qwen3-8B-FP8 --gpu none --engine vllm",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --engine nope",
    "--model Qwen/Qwen9-8B --gpu rtx-4090",
    "--model Qwen/Qwen3-8B --gpu rtx-9090",
    "--model Qwen/Qwen3-8B --gpu none --engine vllm --quant bnb-int8",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --engine vllm --quant bnb-int8",
    "--gpu rtx-4090",
)
_SHARED = (
    "--model Qwen/Qwen3-8B --reward Qwen/Qwen3-0.6B --gpu rtx-4090",
    "--model Qwen/Qwen2.5-7B-Instruct --reward Qwen/Qwen2.5-3B --gpu rtx-4090",
    "--model Qwen/Qwen3-32B --reward Qwen/Qwen3-8B --gpu a100-80gb",
    "--model Qwen/Qwen3-32B --reward Qwen/Qwen3-8B --gpu rtx-4090:2",
    "--model Qwen/Qwen3-32B --reward Qwen/Qwen3-4B --gpu rtx-4090:4 --quant 4bit",
    "--model Qwen/Qwen3-14B --reward Qwen/Qwen3-8B --gpu rtx-4090 --quant 4bit",
    "--model Qwen/Qwen3-1.7B --reward Qwen/Qwen3-0.6B --gpu none",
    "--model Qwen/Qwen3-8B --reward Qwen/Qwen3-4B --gpu rtx-4090 --engine transformers",
    "--model demo --reward demo --gpu none",
    "--model demo --reward demo --gpu rtx-3060",
    "--model Qwen/Qwen3-32B --reward Qwen/Qwen3-32B --gpu rtx-3060",
)
_LEARNED = (
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --max-num-seqs 64",
    "--model Qwen/Qwen3-32B --gpu rtx-4090:2 --quant 4bit",
    "--model Qwen/Qwen3-30B-A3B --gpu h100-sxm",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --kv-cache-memory-bytes 2GiB",
    "--model Qwen/Qwen3-0.6B --gpu none --engine vllm",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --engine transformers",
    "--model Qwen/Qwen3-32B --gpu rtx-4090:2 --engine transformers --quant 4bit",
    "--model demo --gpu none",
)
_CONFIGS = (
    "demo-cpu",
    "qwen2.5-7b-with-reward-1x24gb",
    "qwen3-32b-1x24gb",
    "qwen3-32b-1x48gb",
    "qwen3-32b-1x80gb",
    "qwen3-32b-2x24gb",
    "qwen3.6-35b-a3b-1x48gb",
    "qwen3.8-27b-1x24gb",
    "qwen3.8-27b-1x48gb",
)


def requests() -> Iterator[str]:
    """Command lines after `qserve`, each once."""
    lines = itertools.chain(
        _by_model(),
        _by_scheme(),
        _by_card(),
        _by_release(),
        _by_flag(),
        _of_transformers(),
        _on_cpu(),
        _mixed(),
        (f"plan {line}" for line in (*_REFUSED, *_SHARED)),
        (f"plan --config {name}" for name in _CONFIGS),
        _training(),
        (f"learned: plan {line}" for line in _LEARNED),
    )
    yield from dict.fromkeys(lines)


def _by_model() -> Iterator[str]:
    models = list(facts.load("models")["models"])
    cards = itertools.cycle(("rtx-4090", "h100-sxm", "l40s:2", "rtx-3090:4", "t4", "a100-40gb"))
    for model, card in zip(models, cards, strict=False):
        yield f"plan --model {model} --gpu {card}"
        yield f"plan --model {model} --gpu h200:8 --quant bf16"
    for model, card in zip(facts.load("models")["variants"], cards, strict=False):
        yield f"plan --model {model} --gpu {card}"
    siblings = [(base, row) for base, row in facts.load("siblings").items()]
    for (_, row), card in zip(siblings, cards, strict=False):
        yield f"plan --model {next(iter(row.values()))} --gpu {card}"


def _by_scheme() -> Iterator[str]:
    offered = (name for name, scheme in SCHEMES.items() if scheme.is_offered)
    for scheme in dict.fromkeys((*FAMILIES, *offered)):
        yield f"plan --model Qwen/Qwen3-32B --gpu rtx-4090 --quant {scheme}"
        yield f"plan --model Qwen/Qwen3-30B-A3B --gpu h100-sxm --quant {scheme}"
        yield f"plan --model Qwen/Qwen3-8B --gpu l40s --engine transformers --quant {scheme}"
        yield f"plan --model Qwen/Qwen3-4B --gpu none --quant {scheme}"


def _by_card() -> Iterator[str]:
    for card in facts.load("gpus")["gpus"]:
        yield f"plan --model Qwen/Qwen3-14B --gpu {card}"
    yield "plan --model Qwen/Qwen3-14B --gpu memory=23.6GiB,sm=128"
    yield "plan --model Qwen/Qwen3-14B --gpu memory=79GiB,sm=132,cc=9.0,count=2,used=10GiB"
    yield "plan --model Qwen/Qwen3-14B --gpu memory=23.6GiB,sm=128,used=8GiB"


def _by_release() -> Iterator[str]:
    models = itertools.cycle(
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3.5-27B", "Qwen/Qwen3-14B-AWQ")
    )
    for release in _RELEASES:
        yield f"plan --model Qwen/Qwen2.5-7B-Instruct --gpu h100-sxm --engine-version {release}"
        yield f"plan --model {next(models)} --gpu l40s:2 --engine-version {release}"


def _by_flag() -> Iterator[str]:
    for flag in _FLAGS:
        for model, card in (
            ("Qwen/Qwen3-8B", "rtx-4090"),
            ("Qwen/Qwen3.5-27B", "l40s:2"),
            ("Qwen/Qwen3-VL-8B-Instruct", "rtx-3090"),
        ):
            yield f"plan --model {model} --gpu {card} {flag}"
    yield "plan --model Qwen/Qwen3-32B --gpu rtx-4090:4 --tensor-parallel-size 2 --pipeline-parallel-size 2"
    yield "plan --model Qwen/Qwen3-32B --gpu rtx-3060:4 --pipeline-parallel-size 4 --quant 4bit --enable-lora"
    yield "plan --model Qwen/Qwen3-32B --gpu rtx-4090 --quant bf16 --enable-lora --max-loras 8 --max-model-len 32768"
    yield "plan --model Qwen/Qwen3-8B --gpu rtx-3060 --engine-args '--enable-lora --max-loras 2'"
    yield "plan --model Qwen/Qwen3-VL-8B-Instruct --gpu l4 --engine-args '--skip_mm_profiling'"


def _of_transformers() -> Iterator[str]:
    for flag in _TRANSFORMERS_FLAGS:
        yield f"plan --model Qwen/Qwen3-14B --gpu rtx-4090 --engine transformers {flag}".strip()
        yield f"plan --model Qwen/Qwen2.5-32B-Instruct --gpu rtx-3090:2 --engine transformers {flag}".strip()
    yield "plan --model Qwen/Qwen3-32B --gpu rtx-4090 --engine transformers --quant bf16 --offload cpu"
    yield "plan --model Qwen/Qwen3-30B-A3B --gpu rtx-4090 --engine transformers --quant 4bit"
    yield "plan --model Qwen/Qwen3.5-9B --gpu rtx-4090 --engine transformers"


def _on_cpu() -> Iterator[str]:
    for model in ("demo", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B", "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3.5-4B"):
        for engine in ("", "--engine vllm", "--engine transformers --max-model-len 2048 --prompt-logprobs"):
            yield f"plan --model {model} --gpu none {engine}".strip()


def _mixed() -> Iterator[str]:
    """Drawn at random, always the same."""
    draw = random.Random(_SEED)
    models, cards = list(facts.load("models")["models"]), list(facts.load("gpus")["gpus"])
    for _ in range(60):
        count, flag, quant = draw.choice((1, 1, 2, 4)), draw.choice(_FLAGS), draw.choice(tuple(FAMILIES))
        yield f"plan --model {draw.choice(models)} --gpu {draw.choice(cards)}:{count} --quant {quant} {flag}"


def _training() -> Iterator[str]:
    for method in ("sft", "lora", "qlora", "reward", "ppo", "grpo"):
        for tail in (
            "--model Qwen/Qwen3-8B --gpu rtx-4090",
            "--model Qwen/Qwen2.5-7B-Instruct --gpu h100-sxm:4 --zero 3 --max-length 4096",
            "--model Qwen/Qwen3-1.7B --gpu rtx-3090:2 --micro-batch 4 --fused-loss",
        ):
            yield f"plan train --method {method} {tail}"
    yield "plan train --method grpo --model Qwen/Qwen2-7B --lora-rank 8 --gpu rtx-3090:4 --zero 2 --vllm colocated"
    yield "plan train --method grpo --model Qwen/Qwen3-8B --gpu h100-sxm:8 --zero 3 --vllm separate --vllm-gpus 2"
    yield "plan train --method ppo --model Qwen/Qwen3-4B --gpu a100-80gb:4 --zero 3 --reward-model Qwen/Qwen3-0.6B"
    yield "plan train --method reward --model Qwen/Qwen2.5-3B --gpu rtx-3090:4 --zero 3 --freeze-base"
    yield "plan train --method sft --model Qwen/Qwen3-8B-AWQ --gpu h100-sxm"
    yield "plan train --method sft --model Qwen/Qwen3-8B --gpu h100-sxm --offload-param cpu"
    yield "plan train --method sft --model Qwen/Qwen3-8B --gpu h100-sxm:2 --zero 3 --offload-optimizer cpu"
