"""`qserve plan train`: what a fine-tune, a reward model or an RL run needs on each card."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, replace
from typing import Any

import click

from qserve.cli.options.numbers import FiniteRange
from qserve.cli.options.planning import hardware_of
from qserve.hub import resolve
from qserve.planner.training import TrainingJob, TrainingPlan, TrainingRequest, VllmBeside, ways_out
from qserve.planner.training.constants import OPTIMIZERS, PRECISIONS

__all__ = ["command"]

_DOES_NOT_FIT = 3
_POSITIVE = click.IntRange(1, 65_536)
# The longest context of a known model is a million.
_TOKENS = click.IntRange(1, 16_777_216)
_WEIGHT, _SHARE = FiniteRange(min=0), FiniteRange(0, 1, min_open=True)
_OFFLOAD = click.Choice(["none", "cpu", "nvme"])


@click.command("train")
@click.option("--method", required=True, type=click.Choice(["sft", "lora", "qlora", "reward", "ppo", "grpo"]))
@click.option("--model", required=True, help="A folder, a hub id, an alias, or demo.")
@click.option("--gpu", help="Plan for cards that are not here: rtx-3090:4, or memory=23.6GiB,count=4.")
@click.option("--micro-batch", type=_POSITIVE, default=1, show_default=True, help="Sequences a card; reward: pairs.")
@click.option("--max-length", type=_TOKENS, default=2048, show_default=True, help="Prompt and completion, in tokens.")
@click.option("--completion-length", type=_TOKENS, help="ppo, grpo: the part whose log-probabilities count [all].")
@click.option("--mean-length", type=_TOKENS, help="The data's mean, where batches are not padded to one length.")
@click.option("--gradient-accumulation-steps", type=_POSITIVE, default=1, show_default=True)
@click.option("--gradient-checkpointing/--no-gradient-checkpointing", default=True, show_default=True)
@click.option("--freeze-base", is_flag=True, help="reward: train the head alone.")
@click.option("--optimizer", type=click.Choice(list(OPTIMIZERS)), default="adamw", show_default=True)
@click.option("--precision", type=click.Choice(list(PRECISIONS)), default="mixed", show_default=True)
@click.option("--zero", "zero_stage", type=click.IntRange(0, 3), default=0, show_default=True, help="DeepSpeed ZeRO.")
@click.option("--offload-optimizer", type=_OFFLOAD, default="none", show_default=True)
@click.option("--offload-param", type=_OFFLOAD, default="none", show_default=True)
@click.option("--lora-rank", type=_POSITIVE, help="Train adapters [8 with lora and qlora].")
@click.option("--lora-targets", type=click.Choice(["all-linear", "attention", "qkv"]), default="all-linear")
@click.option("--train-embeddings", is_flag=True, help="Train embedding and lm_head beside the adapters.")
@click.option("--attention", type=click.Choice(["sdpa", "eager"]), default="sdpa", show_default=True)
@click.option("--fused-loss", is_flag=True, help="Liger's fused linear cross-entropy (use_liger_kernel=True).")
@click.option(
    "--beta", type=FiniteRange(min=0), default=0.04, show_default=True, help="KL weight; 0 needs no reference model."
)
@click.option("--reward-model", help="ppo, grpo: a reward model beside the policy [ppo: one of its size].")
@click.option("--vllm", type=click.Choice(["colocated", "separate"]), help="Where the engine for rollouts lives.")
@click.option("--vllm-gpus", type=_POSITIVE, default=1, show_default=True, help="Cards of a separate engine.")
@click.option("--vllm-tensor-parallel-size", type=_POSITIVE, default=1, show_default=True)
@click.option("--vllm-sleep", is_flag=True, help="A colocated engine gives its memory back while the trainer works.")
@click.option(
    "--gpu-memory-utilization",
    type=FiniteRange(0, 1, min_open=True),
    default=0.9,
    show_default=True,
    help="The engine's share.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as one JSON object.")
@click.option("--explain", is_flag=True, help="Print each term with its formula, its numbers and its source.")
def command(model: str, gpu: str | None, reward_model: str | None, as_json: bool, explain: bool, **values: Any) -> None:
    """Does a training run fit, what fills the card, and what to change first?

    \b
    qserve plan train --method lora --model Qwen/Qwen3-8B --gpu rtx-4090
    qserve plan train --method reward --model Qwen/Qwen2.5-3B --gpu rtx-3090:4 --zero 3 --max-length 4096
    qserve plan train --method grpo --model Qwen/Qwen2-7B --lora-rank 8 --gpu rtx-3090:4 --zero 2 --vllm colocated
    """
    checkpoint = resolve(model)
    reward = resolve(reward_model).spec if reward_model else None
    hardware = hardware_of(gpu)
    ram_bytes = hardware.ram_available_bytes if gpu is None else None
    job = TrainingJob(model, checkpoint.spec, gpu, hardware.devices, _request(values), reward_model, reward, ram_bytes)
    plan = job.plan()
    if not plan.fits:
        plan = replace(plan, suggestions=ways_out(job))
    _print(replace(plan, notes=(*checkpoint.messages, *plan.notes)), as_json, explain)
    if not plan.fits:
        sys.exit(_DOES_NOT_FIT)


def _request(values: dict[str, Any]) -> TrainingRequest:
    given = {name: value for name, value in values.items() if value is not None}
    known = {field.name: given[field.name] for field in fields(TrainingRequest) if field.name in given}
    mode = known.pop("vllm", None)
    vllm = None
    if mode is not None:
        vllm = VllmBeside(
            mode,
            values["gpu_memory_utilization"],
            values["vllm_tensor_parallel_size"],
            values["vllm_gpus"],
            values["vllm_sleep"],
        )
    return TrainingRequest(**known, vllm=vllm)


def _print(plan: TrainingPlan, as_json: bool, explain: bool) -> None:
    if as_json:
        click.echo(json.dumps(plan.to_json(), indent=2, ensure_ascii=False))
        return
    from qserve.cli.plan.show_training import show_training

    show_training(plan, explain)
