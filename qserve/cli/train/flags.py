"""What was typed for `qserve train` beside the request: checked against itself and the data, and the run of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from qserve.core.hardware import Device
from qserve.core.release import shown_release
from qserve.errors import UsageError
from qserve.planner.training import TrainingRequest
from qserve.planner.training.training_defaults import num_trainers
from qserve.planner.training.trl_releases import PPO_LEFT_WITH
from qserve.training.data.scores import STEPS
from qserve.training.job import DataSource, RewardSource, SaveAs, Schedule, TrainingRun

__all__ = ["TrainFlags", "data_at", "source_at", "split_reward"]

_DEMO = "demo"


@dataclass(frozen=True)
class TrainFlags:
    """What was typed beside the request, by the names of the options."""

    data: str | None
    eval_data: str | None
    eval_share: float
    max_broken: float
    gpus: int | None
    output: Path | None
    max_steps: int | None
    epochs: float | None
    learning_rate: float | None
    warmup_steps: int
    seed: int
    eval_steps: int | None
    save_steps: int | None
    save_total_limit: int
    patience: int | None
    center_rewards: float | None
    labels: str | None
    label_weights: str | None
    label_smoothing: float
    save_as: SaveAs
    rewards: tuple[str, ...]
    num_generations: int
    packing: bool
    num_workers: int
    resume: bool
    emit: str | None
    auto: bool
    state_dir: Path | None
    vllm: str | None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> TrainFlags:
        """From a command's keyword arguments, which have those of the request as well."""
        return cls(**{one.name: values[one.name] for one in fields(cls)})

    @property
    def source(self) -> str:
        """Where the rows are; `check` refuses flags without."""
        assert self.data is not None, "checked"
        return self.data

    @property
    def score_names(self) -> tuple[str, ...]:
        """As they were typed; empty: as the data says."""
        return tuple(name.strip() for name in (self.labels or "").split(",") if name.strip())

    def labelled(self, request: TrainingRequest, labels: tuple[str, ...]) -> TrainingRequest:
        """The request for data whose scores are called so (empty: pairs). Raises UsageError for flags against that."""
        if request.num_labels not in (None, len(labels)):
            what = f"{len(labels)} scores a row: {', '.join(labels)}" if labels else "pairs, which have no scores"
            raise UsageError(f"--num-labels is {request.num_labels}, but the data has {what}; leave it out")
        if request.step_labels and labels != STEPS:
            raise UsageError("--step-labels: the data has no step labels (completions with labels); leave it out")
        if labels == STEPS and request.tuning in ("lora", "qlora"):
            raise UsageError(
                "this data has step labels, and adapters can't add the token that ends a step; train all weights, or "
                "only the head: --freeze-base in place of --lora-rank"
            )
        if labels and self.center_rewards is not None:
            raise UsageError("--center-rewards pulls rewards of pairs to 0, and this data has scores; leave it out")
        if labels and self.label_smoothing:
            raise UsageError("--label-smoothing is for pairs, and this data has scores; leave it out")
        weights = self._weights()
        unknown = [name for name in weights if name not in labels]
        if unknown:
            known = f"its scores are {', '.join(labels)}" if labels else "its rows are pairs"
            raise UsageError(f"--label-weights names {unknown[0]!r}, which the data does not have: {known}")
        return replace(request, num_labels=len(labels), step_labels=labels == STEPS) if labels else request

    def _weights(self) -> dict[str, float]:
        from qserve.reward.checkpoints.labels import parse_weights

        text = self.label_weights
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
        return TrainingRun(
            request=request,
            model=source_at(model),
            data=DataSource(
                data_at(self.source),
                self.eval_data and data_at(self.eval_data),
                self.eval_share,
                self.max_broken,
                labels,
            ),
            output=output,
            schedule=Schedule(**{one.name: getattr(self, one.name) for one in fields(Schedule)}),
            seed=self.seed,
            device="cpu" if devices[0].kind == "cpu" else "cuda",
            num_processes=num_trainers(request, len(devices)),
            center_rewards=self.center_rewards,
            label_weights=self._weights(),
            label_smoothing=self.label_smoothing,
            save_as=self.save_as,
            rewards=tuple(_reward(text) for text in self.rewards),
            num_generations=self.num_generations,
            num_workers=self.num_workers,
            packing=self.packing,
        )

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
        method = request.method
        if self.data is None:
            raise UsageError(f"qserve train {method} needs --data: a file of rows, a folder, or a data set's id")
        only: tuple[tuple[str, bool, tuple[str, ...]], ...] = (
            ("--patience", self.patience is not None, ("reward",)),
            ("--center-rewards", self.center_rewards is not None, ("reward",)),
            ("--labels", self.labels is not None, ("reward",)),
            ("--label-weights", self.label_weights is not None, ("reward",)),
            ("--save-as", self.save_as != "sequence-classification", ("reward",)),
            ("--label-smoothing", bool(self.label_smoothing), ("reward", "dpo")),
            ("--packing", self.packing, ("sft", "lora", "qlora")),
            ("--reward", bool(self.rewards), ("grpo", "ppo")),
        )
        for flag, is_given, methods in only:
            if is_given and method not in methods:
                raise UsageError(f"{flag} is for {', '.join(methods)}; leave it out with {method}")
        if request.freeze_base and request.lora_rank:
            raise UsageError("--freeze-base trains the head alone; leave --lora-rank out, or train adapters without it")
        if method == "ppo" and self.emit is None:
            raise UsageError(
                f"TRL removed PPO in release {shown_release(PPO_LEFT_WITH)}, and qserve can't run it; --emit openrlhf "
                "or --emit verl prints a command for it"
            )
        if method == "grpo" and not self.rewards:
            raise UsageError(
                "grpo needs --reward: a server's URL (qserve up --reward …), a checkpoint, or a YAML of rules"
            )
        if self.save_as == "reward-head" and request.tuning in ("lora", "qlora"):
            raise UsageError(
                "--save-as reward-head is a layout of whole models; leave it out: adapters are saved in PEFT's layout"
            )


def source_at(text: str) -> str:
    """A path made absolute; a hub id as it is."""
    path = Path(text).expanduser()
    return str(path.absolute()) if path.exists() else text


def data_at(text: str) -> str:
    """The same of rows; demo: the preferences that come with qserve, whatever is called so here, as with --model."""
    if text != _DEMO:
        return source_at(text)
    from qserve.evaluation.preferences import demo_preferences

    return str(demo_preferences())


def split_reward(text: str) -> tuple[float, str]:
    """(weight, target) of `0.5=http://…` or of a target alone."""
    weight, mark, target = text.partition("=")
    if not mark or "/" in weight or not weight.replace(".", "", 1).replace("-", "", 1).isdigit():
        return 1.0, text
    return float(weight), target


def _reward(text: str) -> RewardSource:
    weight, target = split_reward(text)
    _refuse_model_in_recipe(target)
    return RewardSource(source_at(target), weight)


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
