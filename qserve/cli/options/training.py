"""Flags of a training request, shared by `qserve plan train` and `qserve train`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_args

import click

from qserve.cli.options.completions import complete_gpu
from qserve.cli.options.numbers import FiniteRange
from qserve.planner.training import TrainingRequest, VllmBeside
from qserve.planner.training.training_constants import OPTIMIZERS, PRECISIONS
from qserve.planner.training.training_defaults import with_accumulation
from qserve.planner.training.training_request import Attention, Base

__all__ = ["training_options", "training_request"]

Function = TypeVar("Function", bound=Callable[..., Any])

_POSITIVE = click.IntRange(1, 65_536)
# The longest context of a known model is a million.
_TOKENS = click.IntRange(1, 16_777_216)
_WEIGHT, _SHARE = FiniteRange(min=0), FiniteRange(0, 1, min_open=True)
_OFFLOAD = click.Choice(["none", "cpu", "nvme"])

_OPTIONS = (
    click.option(
        "--gpu",
        shell_complete=complete_gpu,
        help="Plan for these cards instead of this machine's: rtx-3090:4, or memory=23.6GiB,count=4. none: the CPU.",
    ),
    click.option(
        "--micro-batch", type=_POSITIVE, default=1, show_default=True, help="Sequences a card; reward, dpo: pairs."
    ),
    click.option(
        "--max-length", type=_TOKENS, default=2048, show_default=True, help="Prompt and completion, in tokens."
    ),
    click.option(
        "--completion-length",
        type=_TOKENS,
        help="ppo, grpo: tokens of the completion; log-probabilities are computed for these [all].",
    ),
    click.option("--mean-length", type=_TOKENS, help="The data's mean, where batches are not padded to one length."),
    click.option(
        "--gradient-accumulation-steps",
        type=_POSITIVE,
        help="Micro-batches of a step [for steps of 8 rows, or pairs; grpo: of 32 rollouts].",
    ),
    click.option(
        "--gradient-checkpointing/--no-gradient-checkpointing",
        default=True,
        show_default=True,
        help="Compute activations twice instead of keeping them.",
    ),
    click.option("--freeze-base", is_flag=True, help="reward: train only the head."),
    click.option(
        "--num-labels", type=_POSITIVE, help="reward: number of scores per text [one reward, trained on pairs]."
    ),
    click.option("--step-labels", is_flag=True, help="reward, with --num-labels 2: label each step as good or bad."),
    click.option(
        "--optimizer",
        type=click.Choice(list(OPTIMIZERS)),
        default="adamw",
        show_default=True,
        help="Of the trained weights.",
    ),
    click.option(
        "--zero", "zero_stage", type=click.IntRange(0, 3), default=0, show_default=True, help="DeepSpeed ZeRO."
    ),
    click.option("--fsdp", is_flag=True, help="Shard by torch's FSDP2 instead of ZeRO-3."),
    click.option(
        "--offload-optimizer", type=_OFFLOAD, default="none", show_default=True, help="ZeRO: keep its states there."
    ),
    click.option(
        "--offload-param", type=_OFFLOAD, default="none", show_default=True, help="ZeRO-3: keep weights there."
    ),
    click.option("--lora-rank", type=_POSITIVE, help="Train adapters [8 with lora and qlora]."),
    click.option(
        "--lora-targets",
        type=click.Choice(["all-linear", "attention", "qkv"]),
        default="all-linear",
        help="Modules with an adapter [all-linear].",
    ),
    click.option("--load-in-4bit", is_flag=True, help="Adapters on an nf4 base, with any method."),
    click.option(
        "--quant",
        type=click.Choice(get_args(Base)),
        help="The frozen base of adapters; int8 is LLM.int8, 4bit nf4 [bf16].",
    ),
    click.option("--train-embeddings", is_flag=True, help="Train embedding and lm_head in addition to the adapters."),
    click.option(
        "--attention",
        type=click.Choice(get_args(Attention)),
        default="sdpa",
        show_default=True,
        help="flash: FlashAttention 2, on cards; sdpa: what torch has for the device.",
    ),
    click.option(
        "--beta", type=_WEIGHT, default=0.04, show_default=True, help="KL weight; grpo: 0 needs no reference model."
    ),
    click.option(
        "--vllm",
        type=click.Choice(["colocated", "separate", "none"]),
        help="Placement of the engine for rollouts [train grpo with a card and vLLM: colocated; else none].",
    ),
    click.option("--vllm-gpus", type=_POSITIVE, default=1, show_default=True, help="Cards of a separate engine."),
    click.option(
        "--vllm-tensor-parallel-size",
        type=_POSITIVE,
        default=1,
        show_default=True,
        help="Cards that share each layer of it.",
    ),
    click.option(
        "--vllm-sleep",
        is_flag=True,
        help="A colocated engine frees its memory during the training step [if needed, unless a fraction is given].",
    ),
    click.option(
        "--gpu-memory-utilization",
        type=_SHARE,
        help="The engine's share [computed: for the rollouts of a step, at most what the trainer leaves].",
    ),
    click.option(
        "--precision",
        type=click.Choice(list(PRECISIONS)),
        help="mixed: 16 bit and an fp32 copy; amp: fp32 under autocast; pure: 16 bit alone; fp32 [amp; with --zero "
        "mixed; on the CPU fp32].",
    ),
)


def training_options(function: Function) -> Function:
    """Adds the flags."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def training_request(values: Mapping[str, Any], num_devices: int = 1) -> TrainingRequest:
    """The request in a command's keyword arguments for so many devices; other arguments are ignored.

    Raises UsageError.
    """
    given = {name: value for name, value in values.items() if value is not None}
    known = {field.name: given[field.name] for field in fields(TrainingRequest) if field.name in given}
    mode = known.pop("vllm", None)
    vllm = None
    if mode not in (None, "none"):
        vllm = VllmBeside(
            mode,
            values["gpu_memory_utilization"],
            values["vllm_tensor_parallel_size"],
            values["vllm_gpus"],
            values["vllm_sleep"],
        )
    request = TrainingRequest(**known, vllm=vllm)
    if "gradient_accumulation_steps" in given:
        return request
    return with_accumulation(request, num_devices, values.get("num_generations") or 8)
