"""The flags of `qserve train` beyond those of `qserve plan train`, and the job that they make."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from qserve.cli.options.numbers import Count, FiniteRange
from qserve.core.hardware import Device, Hardware
from qserve.errors import MissingExtra, UsageError
from qserve.planner.training import TrainingRequest, VllmBeside
from qserve.training.data.scores import STEPS
from qserve.training.emit import FRAMEWORKS
from qserve.training.job import DataSource, RewardSource, SaveAs, Schedule, TrainingRun

__all__ = ["METHODS", "TrainFlags", "completed", "devices_of", "run_options", "source_at", "with_engine"]

Function = TypeVar("Function", bound=Callable[..., Any])

METHODS = ("sft", "lora", "qlora", "reward", "dpo", "grpo", "ppo")
_STEPS, _SHARE = Count(1), FiniteRange(0, 1)
_FOLDER = click.Path(path_type=Path)

_OPTIONS = (
    click.option("--data", help="JSON lines, JSON, Parquet or Arrow: a file, a folder, or a data set of the hub."),
    click.option("--eval-data", help="Likewise, to evaluate on [a share of the prompts is held out]."),
    click.option("--eval-share", type=_SHARE, default=0.05, show_default=True, help="Share of prompts held out."),
    click.option("--max-broken", type=_SHARE, default=0.01, show_default=True, help="Share of rows that may be bad."),
    click.option("--gpus", type=_STEPS, help="Cards of this machine to train on [all]; without one: processes [1]."),
    click.option("--output", type=_FOLDER, help="Folder for model, checkpoints and configuration [below --state-dir]."),
    click.option("--max-steps", type=_STEPS, help="Optimizer steps [by --epochs]."),
    click.option("--epochs", type=FiniteRange(0, min_open=True), default=1.0, show_default=True),
    click.option("--learning-rate", type=FiniteRange(0, min_open=True), help="[by method]"),
    click.option("--warmup-steps", type=Count(0), default=0, show_default=True),
    click.option("--seed", type=Count(0), default=0, show_default=True),
    click.option("--eval-steps", type=_STEPS, help="Evaluate every so many steps [a tenth of the run, at most 200]."),
    click.option("--save-steps", type=_STEPS, help="A checkpoint every so many steps [as --eval-steps]."),
    click.option("--save-total-limit", type=_STEPS, default=2, show_default=True, help="Checkpoints that are kept."),
    click.option("--patience", type=_STEPS, help="reward: end after so many evaluations without a better one [never]."),
    click.option("--center-rewards", type=FiniteRange(0), help="reward: pull the mean to 0 (0.01 is usual) [off]."),
    click.option("--labels", help="reward: names of the scores in each row, with commas between [as the data says]."),
    click.option("--label-weights", help="reward: NAME=WEIGHT,…: what each label counts in the reward [their mean]."),
    click.option("--label-smoothing", type=FiniteRange(0, 0.5), default=0.0, show_default=True, help="dpo."),
    click.option(
        "--save-as", type=click.Choice(["sequence-classification", "reward-head"]), default="sequence-classification",
        show_default=True, help="reward: transformers' layout, or a linear reward_head over base_model.",
    ),
    click.option(
        "--reward", "rewards", multiple=True,
        help="grpo: what rewards: a server's URL, a checkpoint, a YAML of rules; WEIGHT=… before it weighs several.",
    ),
    click.option("--num-generations", type=Count(2), default=8, show_default=True, help="grpo: rollouts a prompt."),
    click.option("--packing", is_flag=True, help="sft: several rows in one sequence of --max-length."),
    click.option("--num-workers", type=Count(0), default=0, show_default=True, help="Processes that prepare batches."),
    click.option("--resume", is_flag=True, help="Go on from the last checkpoint in --output."),
    click.option(
        "--emit", type=click.Choice(FRAMEWORKS), help="Print the command of another trainer, and run nothing."
    ),
    click.option("--auto", is_flag=True, help="Take the cheapest change that fits where the run does not."),
    click.option(
        "--state-dir", type=_FOLDER, envvar="QSERVE_STATE_DIR", help="Where runs are kept [~/.local/state/qserve]."
    ),
)  # fmt: skip


def run_options(function: Function) -> Function:
    """Adds them all."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@dataclass(frozen=True)
class TrainFlags:
    """What was typed beside the request."""

    values: dict[str, Any]

    @property
    def labels(self) -> tuple[str, ...]:
        """As they were typed; empty: as the data says."""
        return tuple(name.strip() for name in (self.values["labels"] or "").split(",") if name.strip())

    def labelled(self, request: TrainingRequest, labels: tuple[str, ...]) -> TrainingRequest:
        """The request for data whose scores are called so (empty: pairs). Raises UsageError for flags against that."""
        if request.num_labels not in (None, len(labels)):
            what = f"{len(labels)} scores a row: {', '.join(labels)}" if labels else "pairs, which have no scores"
            raise UsageError(f"--num-labels is {request.num_labels}, but the data has {what}; leave it out")
        if request.step_labels and labels != STEPS:
            raise UsageError("--step-labels: the data labels no steps (completions with labels); leave it out")
        if labels == STEPS and request.tuning in ("lora", "qlora"):
            raise UsageError(
                "this data labels steps, and adapters have no place for the token that ends them; train all weights, "
                "or the head alone: --freeze-base in place of --lora-rank"
            )
        if labels and self.values["center_rewards"] is not None:
            raise UsageError("--center-rewards pulls rewards of pairs to 0, and this data has scores; leave it out")
        weights = self._weights()
        unknown = [name for name in weights if name not in labels]
        if unknown:
            known = f"its scores are {', '.join(labels)}" if labels else "its rows are pairs"
            raise UsageError(f"--label-weights weighs {unknown[0]!r}, which the data does not have: {known}")
        return replace(request, num_labels=len(labels), step_labels=labels == STEPS) if labels else request

    def _weights(self) -> dict[str, float]:
        from qserve.reward.checkpoints.labels import parse_weights

        text = self.values["label_weights"]
        return parse_weights(text, "--label-weights") if text else {}

    def run(
        self,
        request: TrainingRequest,
        model: str,
        output: Path,
        devices: Sequence[Device],
        labels: tuple[str, ...] = (),
    ) -> TrainingRun:
        """The run that they describe, on `devices` as they were planned, with data whose scores are called `labels`."""
        values = self.values
        return TrainingRun(
            request=request,
            model=source_at(model),
            data=DataSource(source_at(values["data"]), values["eval_data"] and source_at(values["eval_data"]),
                            values["eval_share"], values["max_broken"], labels),
            output=output,
            schedule=Schedule(**{name: values[name] for name in Schedule.__dataclass_fields__}),
            seed=values["seed"],
            device="cpu" if devices[0].kind == "cpu" else "cuda",
            num_processes=max(1, _trainers(request, len(devices))),
            center_rewards=values["center_rewards"],
            label_weights=self._weights(),
            label_smoothing=values["label_smoothing"],
            save_as=cast("SaveAs", values["save_as"]),
            rewards=tuple(_reward(text) for text in values["rewards"]),
            num_generations=values["num_generations"],
            num_workers=values["num_workers"],
            packing=values["packing"],
        )  # fmt: skip

    @staticmethod
    def check_rollouts(run: TrainingRun) -> None:
        """Raises UsageError where a step does not hold whole groups of rollouts, which TRL would refuse."""
        together = run.request.micro_batch * run.num_processes
        batch = together * run.request.gradient_accumulation_steps
        if run.trainer == "grpo" and batch % run.num_generations:
            steps = math.lcm(together, run.num_generations) // together
            raise UsageError(
                f"grpo compares {run.num_generations} rollouts of each prompt (--num-generations), and a step has "
                f"{batch}; take --gradient-accumulation-steps {steps}, or another --micro-batch or --num-generations"
            )

    def check(self, request: TrainingRequest) -> None:
        """Raises UsageError for flags that contradict each other, and for data that can't be read."""
        values, method = self.values, request.method
        if values["data"] is None:
            raise UsageError(f"qserve train {method} needs --data: a file of rows, a folder, or a data set's id")
        only: tuple[tuple[str, bool, tuple[str, ...]], ...] = (
            ("--patience", values["patience"] is not None, ("reward",)),
            ("--center-rewards", values["center_rewards"] is not None, ("reward",)),
            ("--labels", values["labels"] is not None, ("reward",)),
            ("--label-weights", values["label_weights"] is not None, ("reward",)),
            ("--save-as", values["save_as"] != "sequence-classification", ("reward",)),
            ("--label-smoothing", bool(values["label_smoothing"]), ("dpo",)),
            ("--packing", values["packing"], ("sft", "lora", "qlora")),
            ("--reward", bool(values["rewards"]), ("grpo", "ppo")),
        )
        for flag, is_given, methods in only:
            if is_given and method not in methods:
                raise UsageError(f"{flag} is for {', '.join(methods)}; leave it out with {method}")
        if request.freeze_base and request.lora_rank:
            raise UsageError("--freeze-base trains the head alone; leave --lora-rank out, or train adapters without it")
        if method == "ppo" and values["emit"] is None:
            raise UsageError(
                "PPO left TRL with release 1.16, and qserve runs none; --emit openrlhf or verl writes its command"
            )
        if method == "grpo" and not values["rewards"]:
            raise UsageError(
                "grpo needs --reward: a server's URL (qserve up --reward …), a checkpoint, or a YAML of rules"
            )
        if values["save_as"] == "reward-head" and request.tuning in ("lora", "qlora"):
            raise UsageError("--save-as reward-head is a whole model's layout; adapters are saved as PEFT has them")


def devices_of(hardware: Hardware, count: int | None) -> tuple[Device, ...]:
    """The cards that train and generate, or so many shares of the RAM, one a process.

    Raises UsageError where so many cards are not here.
    """
    if hardware.devices:
        if count is not None and count > len(hardware.devices):
            raise UsageError(f"--gpus is {count}, but this machine has {len(hardware.devices)}")
        return hardware.devices[:count]
    cpu, share = hardware.cpu_device, count or 1
    each = replace(cpu, total_bytes=cpu.total_bytes // share, used_by_others_bytes=cpu.used_by_others_bytes // share)
    return (each,) * share


def _trainers(request: TrainingRequest, num_cards: int) -> int:
    separate = request.vllm is not None and request.vllm.mode == "separate"
    return num_cards - (request.vllm.num_gpus if separate and request.vllm else 0)


def source_at(text: str) -> str:
    """A path made absolute; a hub id as it is."""
    path = Path(text).expanduser()
    return str(path.absolute()) if path.exists() else text


def _reward(text: str) -> RewardSource:
    """`0.5=http://…` or a target alone."""
    weight, mark, target = text.partition("=")
    if not mark or "/" in weight or not weight.replace(".", "", 1).replace("-", "", 1).isdigit():
        weight, target = "1", text
    _refuse_model_in_recipe(target)
    return RewardSource(source_at(target), float(weight))


def _refuse_model_in_recipe(target: str) -> None:
    """Its model would have to be loaded beside the trainer's own; a server holds it."""
    from qserve.reward.recipe import is_recipe, read_recipe

    if not is_recipe(target):
        return
    recipe = read_recipe(Path(target).expanduser())
    if recipe.model is not None or recipe.asks_served:
        raise UsageError(
            f"{target} combines rules with a model, which a server holds: qserve up --reward {target}, and then "
            "--reward http://127.0.0.1:8000"
        )


def completed(request: TrainingRequest, hardware: Hardware, *, emit: str | None = None) -> TrainingRequest:
    """The request with what TRL does by itself, and what this machine has to do where the run is not another trainer's.

    Raises UsageError, or MissingExtra for ZeRO without DeepSpeed and 8-bit or 4-bit without bitsandbytes.
    """
    if emit is not None:
        return replace(request, tiled_loss=emit == "trl" and request.method != "reward")
    _refuse_what_is_not_installed(request)
    if request.sharding_stage and not hardware.devices:
        _refuse_on_cpu(request)
    if request.base == "fp16" and request.precision != "fp32" and not hardware.devices:
        raise UsageError(
            f"accelerate mixes fp16 on cards alone, and this run has none; --precision fp32 (not {request.precision}) "
            "computes in the base's own fp16, or take --quant bf16"
        )
    if request.precision == "mixed" and not request.zero_stage and request.tuning == "full" and hardware.devices:
        raise UsageError(
            "--precision mixed is DeepSpeed's (16-bit weights with an fp32 master copy); add --zero 1, 2 or 3, or take "
            "--precision amp"
        )
    # TRL 1.16 computes log-probabilities of all its causal losses in tiles and never holds all logits.
    return replace(request, tiled_loss=request.method != "reward")


def _refuse_on_cpu(request: TrainingRequest) -> None:
    """What can't be sharded over processes on a CPU."""
    if request.precision != "fp32":
        raise UsageError(
            f"processes on a CPU shard in fp32 alone, and --precision is {request.precision}; leave it out, or train "
            "without --zero and --fsdp"
        )
    if "nvme" in (request.offload_optimizer, request.offload_param):
        raise UsageError("offloading to NVMe is for cards; on a CPU take --offload-optimizer cpu, or leave it out")


def with_engine(request: TrainingRequest, asked: str | None, hardware: Hardware) -> TrainingRequest:
    """Rollouts by vLLM where there are a card and vLLM, by transformers elsewhere. `asked` is --vllm.

    Raises UsageError for an engine that can't run here.
    """
    if request.method != "grpo":
        return request
    if request.vllm is None:
        fits = asked is None and bool(hardware.devices) and _has_vllm() and request.base != "int8"
        return replace(request, vllm=VllmBeside("colocated")) if fits else request
    if not hardware.devices:
        raise UsageError(
            f"--vllm {asked} generates on a card, and this run has none; leave it out: transformers writes the rollouts"
        )
    if request.base == "int8":
        raise UsageError("vLLM takes no base in int8 from a trainer; take --quant 4bit or bf16, or --vllm none")
    return request


def _has_vllm() -> bool:
    return importlib.util.find_spec("vllm") is not None


def _refuse_what_is_not_installed(request: TrainingRequest) -> None:
    if request.zero_stage and importlib.util.find_spec("deepspeed") is None:
        raise MissingExtra("deepspeed", f"--zero {request.zero_stage}")
    needs_bnb = request.optimizer == "adamw-8bit" or request.base in ("int8", "4bit")
    if needs_bnb and importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtra("bitsandbytes", "--optimizer adamw-8bit, --quant int8 and 4bit, --load-in-4bit and qlora")
