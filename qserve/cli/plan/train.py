"""`qserve plan train`: what a fine-tune, a reward model or an RL run needs on each card."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import click

from qserve.cli.options.command import Command, model_options, needed_model
from qserve.cli.options.numbers import Count
from qserve.cli.options.planning import hardware_of
from qserve.cli.options.training import training_options, training_request
from qserve.hub import resolve
from qserve.planner.speed.terms.cpu import assumed_rates
from qserve.planner.training import TrainingJob, TrainingPlan, training_suggestions
from qserve.planner.training.command import train_command
from qserve.planner.training.duration import ASSUMED_ROWS

__all__ = ["command"]

_DOES_NOT_FIT = 3


@click.command("train", cls=Command, short_help="Plan the memory and the time of a training run.")
@click.option(
    "--method",
    required=True,
    type=click.Choice(["sft", "lora", "qlora", "reward", "dpo", "ppo", "grpo"]),
    help="What is trained, and how.",
)
@model_options()
@training_options("mixed; on the CPU fp32")
@click.option("--fused-loss", is_flag=True, help="Liger's fused linear cross-entropy (use_liger_kernel=True).")
@click.option("--tiled-loss", is_flag=True, help="TRL 1.16 and later: log-probabilities in tiles, never all logits.")
@click.option("--reward-model", help="ppo, grpo: a reward model on the same cards [ppo: one of the policy's size].")
@click.option(
    "--rows", type=Count(1), default=ASSUMED_ROWS, show_default=True, help="Rows of the data, for the estimate of time."
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as one JSON object.")
@click.option("--explain", is_flag=True, help="Print each term with its formula, its numbers and its source.")
def command(
    model: str | None, gpu: str | None, reward_model: str | None, as_json: bool, explain: bool, **values: Any
) -> None:
    """Plan the memory and the time of a training run: does it fit, what fills the cards, and what fits instead?

    \b
    qserve plan train Qwen/Qwen3-8B --method lora --gpu rtx-4090
    qserve plan train Qwen/Qwen2.5-3B --method reward --gpu rtx-3090:4
    qserve plan train Qwen/Qwen3-4B --method grpo --gpu l40s:4 --zero 2
    """
    model = needed_model(model, "qserve plan train Qwen/Qwen3-8B --method lora")
    checkpoint = resolve(model)
    reward = resolve(reward_model).spec if reward_model else None
    hardware = hardware_of(gpu)
    devices = (hardware.cpu_device,) if gpu == "none" else hardware.devices
    ram_bytes = hardware.ram_available_bytes if gpu in (None, "none") else None
    values["precision"] = values["precision"] or ("fp32" if gpu == "none" else "mixed")
    request = training_request(values, len(devices))
    job = TrainingJob(
        model, checkpoint.spec, gpu, devices, request, reward_model, reward, ram_bytes, num_rows=values["rows"],
        cpu_flop_per_s=assumed_rates(hardware).gemm_flop_per_s,
    )  # fmt: skip
    plan = job.plan()
    if not plan.fits:
        plan = replace(plan, suggestions=training_suggestions(job))
    command = train_command(model, request, len(devices), gpu="none" if gpu == "none" else None)
    _print(replace(plan, notes=(*checkpoint.messages, *plan.notes)), as_json, explain, command)
    if not plan.fits:
        sys.exit(_DOES_NOT_FIT)


def _print(plan: TrainingPlan, as_json: bool, explain: bool, command: str) -> None:
    if as_json:
        made = plan.to_json() | {"next_command": command if plan.fits else None}
        click.echo(json.dumps(made, indent=2, ensure_ascii=False))
        return
    from qserve.cli.plan.show_training import show_training

    show_training(plan, explain, command=command)
