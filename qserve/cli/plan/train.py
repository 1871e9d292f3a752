"""`qserve plan train`: what a fine-tune, a reward model or an RL run needs on each card."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any, get_args

import click

from qserve.cli.options.command import Command, model_options, needed_model
from qserve.cli.options.numbers import Count, Release
from qserve.cli.options.training import training_options, training_request
from qserve.core.model_spec import ModelSpec
from qserve.core.release import shown_release
from qserve.errors import UsageError
from qserve.hub import resolve
from qserve.planner.speed.terms.cpu import assumed_rates
from qserve.planner.training import TrainingJob, TrainingPlan, training_suggestions
from qserve.planner.training.command import train_command, why_no_run
from qserve.planner.training.duration import ASSUMED_ROWS
from qserve.planner.training.models import bitsandbytes_base
from qserve.planner.training.training_defaults import (
    default_evaluation,
    default_kbit_fp32,
    default_precision,
    default_tiled_loss,
)
from qserve.planner.training.training_request import KbitFp32
from qserve.planner.training.traps import old_release_notes
from qserve.planner.training.trl_releases import OUR_TRL, SKIPS_LOGITS_SINCE, TILES_SINCE, TRL_RELEASE
from qserve.service.machine import hardware_of
from qserve.service.next_command import machine_of

__all__ = ["command"]

_DOES_NOT_FIT = 3
_NO_SCORING = (
    "--evaluation and --no-evaluation change nothing here: an evaluation holds more than the training only with "
    "--fused-loss without --tiled-loss, and with sft, lora and qlora alone"
)


@click.command("train", cls=Command, short_help="Plan the memory and the time of a training run.")
@click.option(
    "--method",
    required=True,
    type=click.Choice(["sft", "lora", "qlora", "reward", "dpo", "ppo", "grpo"]),
    help="What is trained, and how.",
)
@model_options()
@training_options
@click.option(
    "--fused-loss",
    is_flag=True,
    help=f"Liger's fused linear cross-entropy (use_liger_kernel=True; deprecated in {OUR_TRL}, which leaves it off).",
)
@click.option(
    "--tiled-loss/--no-tiled-loss",
    default=None,
    help=f"TRL {shown_release(TILES_SINCE)} and later: log-probabilities in tiles, never all logits [on; off for "
    "reward, ppo and --fused-loss].",
)
@click.option(
    "--evaluation/--no-evaluation",
    default=None,
    help="With --fused-loss: held-out rows are scored during the run with all logits, --micro-batch at a time "
    f"[sft, lora, qlora with --trl before {shown_release(SKIPS_LOGITS_SINCE)}]. --evaluation plans another trainer's.",
)
@click.option(
    "--kbit-fp32",
    type=click.Choice(get_args(KbitFp32)),
    help="What prepare_model_for_kbit_training left in fp32 of a quantized base; all: embedding, lm_head, norms [none; "
    "by --trl].",
)
@click.option(
    "--trl",
    type=Release(),
    help=f"TRL's release, whose own loss and --kbit-fp32 are planned [{shown_release(TRL_RELEASE)}].",
)
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
    reward = resolve(reward_model) if reward_model else None
    hardware = hardware_of(gpu)
    devices = (hardware.cpu_device,) if gpu == "none" else hardware.devices
    ram_bytes = hardware.ram_available_bytes if gpu in (None, "none") else None
    trl = values.pop("trl") or TRL_RELEASE
    theirs, ours = (_with_defaults(values, one, checkpoint.spec, on_cpu=gpu == "none") for one in (trl, TRL_RELEASE))
    request = training_request(theirs, len(devices))
    release = shown_release(trl)
    job = TrainingJob(
        model,
        checkpoint.spec,
        gpu,
        devices,
        request,
        reward_model,
        reward.spec if reward is not None else None,
        ram_bytes,
        num_rows=values["rows"],
        cpu_flop_per_s=assumed_rates(hardware).gemm_flop_per_s,
        packed_word=checkpoint.packed_word,
    )
    try:
        plan = job.plan()
    except UsageError as error:  # what was found on this machine may be why
        raise UsageError("\n".join((str(error), *hardware.notes))) from error
    if not plan.fits:
        plan = replace(plan, suggestions=training_suggestions(job))
    next_step: dict[str, str] = {}
    read = [checkpoint, *([reward] if reward is not None else [])]
    notes = [*(note for one in read for note in one.told), *hardware.notes, *plan.notes]
    if values["evaluation"] is not None and not replace(request, evaluation=True).scores_all_logits:
        notes.append(_NO_SCORING)
    notes += old_release_notes(trl, plan.request, checkpoint.spec)
    if plan.fits and (why := why_no_run(request, release if theirs != ours else "", on_cpu=job.on_cpu)) is not None:
        notes.append(why)
    elif plan.fits:
        next_step = {"next_command": _next_command(job), "machine": machine_of(gpu, hardware)}
    _print(replace(plan, notes=tuple(notes)), release, as_json, explain, next_step)
    if not plan.fits:
        sys.exit(_DOES_NOT_FIT)


def _with_defaults(values: dict[str, Any], trl: tuple[int, ...], spec: ModelSpec, *, on_cpu: bool) -> dict[str, Any]:
    """With what `qserve train` decides where nothing is said, or that release of TRL."""
    precision, tiled_loss, kbit_fp32 = values["precision"], values["tiled_loss"], values["kbit_fp32"]
    evaluation = values["fused_loss"] and default_evaluation(values["method"], trl)
    is_tiled = not values["fused_loss"] and default_tiled_loss(values["method"], trl)
    in_fp32 = "none" if values["zero_stage"] else default_kbit_fp32(values["method"], _base(values, spec), trl)
    return {
        **values,
        "precision": precision or default_precision(values["zero_stage"], on_cpu=on_cpu),
        "tiled_loss": is_tiled if tiled_loss is None else tiled_loss,
        "evaluation": evaluation if values["evaluation"] is None else values["evaluation"],
        "kbit_fp32": kbit_fp32 or in_fp32,
    }


def _base(values: dict[str, Any], spec: ModelSpec) -> str | None:
    """What bitsandbytes holds the base of adapters in (None: it holds none): the checkpoint's own before any flag's."""
    has_adapters = values["method"] in ("lora", "qlora") or values["lora_rank"] or values["load_in_4bit"]
    if not has_adapters or values["freeze_base"]:
        return None
    if spec.quantization is not None:
        return bitsandbytes_base(spec.quantization.scheme)
    return "4bit" if values["method"] == "qlora" or values["load_in_4bit"] else values["quant"]


def _next_command(job: TrainingJob) -> str:
    gpu = "none" if job.gpu == "none" else None
    return train_command(job.model, job.request, len(job.devices), gpu=gpu, on_cpu=job.on_cpu)


def _print(plan: TrainingPlan, release: str, as_json: bool, explain: bool, next_step: dict[str, str]) -> None:
    """`release`: TRL's, which was planned.

    `next_step`: `next_command` and `machine`, as in `qserve plan`; empty where `qserve train` does not run it.
    """
    if as_json:
        made = plan.to_json() | {"trl": release} | {name: text for name, text in next_step.items() if text}
        click.echo(json.dumps(made, indent=2, ensure_ascii=False))
        return
    from qserve.cli.plan.show_training import show_training

    command, machine = next_step.get("next_command", ""), next_step.get("machine", "")
    show_training(plan, explain, command=command, machine=machine, with_time=True)
