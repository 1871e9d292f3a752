"""Which trainer runs which method, and the planned run as its command."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from qserve.core.release import shown_release
from qserve.errors import UsageError
from qserve.planner.training.trl_releases import PPO_LEFT_WITH
from qserve.reward.recipe import is_recipe
from qserve.training.configuration.files import command_without_qserve
from qserve.training.emit.openrlhf import openrlhf_words
from qserve.training.emit.swift import swift_words
from qserve.training.emit.verl import verl_words
from qserve.training.job import TrainingRun

__all__ = ["FRAMEWORKS", "emitted"]

_WORDS: dict[str, tuple[Callable[[TrainingRun], list[str]], tuple[str, ...]]] = {
    "ms-swift": (swift_words, ("sft", "lora", "qlora", "reward", "dpo", "grpo")),
    "openrlhf": (openrlhf_words, ("sft", "lora", "reward", "dpo", "grpo", "ppo")),
    "verl": (verl_words, ("grpo", "ppo")),
}
FRAMEWORKS = ("trl", *_WORDS)
_BASES = {"ms-swift": ("fp16", "int8", "4bit"), "openrlhf": ("4bit",), "verl": ()}
"""What a frozen base may be held in beside bf16."""


def emitted(run: TrainingRun, framework: str) -> str:
    """The command, to be pasted into a shell. Raises UsageError for a method that the trainer does not have."""
    if run.request.num_labels is not None:
        raise UsageError("only qserve trains a reward model with several labels; leave --emit or --num-labels out")
    if framework == "trl":
        if run.method == "ppo":
            raise UsageError(
                f"PPO left TRL with release {shown_release(PPO_LEFT_WITH)}; --emit openrlhf or --emit verl has it"
            )
        _refuse_what_trl_lacks(run)
        return command_without_qserve(run)
    make, methods = _WORDS[framework]
    if run.method not in methods:
        raise UsageError(
            f"{framework} has no {run.method} that qserve writes a command for; it takes {', '.join(methods)}"
        )
    base = run.request.base
    if base not in (None, "bf16", *_BASES[framework]):
        flag = "--load-in-4bit" if run.request.load_in_4bit else f"--quant {base}"
        raise UsageError(f"no command of {framework} trains adapters on a base in {base}; leave {flag} out")
    _refuse_rewards(run, framework)
    unwritten = _unwritten(run, framework)
    if unwritten:
        raise UsageError(
            f"qserve does not write {', '.join(unwritten)} for {framework}: leave it out here and set it in that "
            "trainer's command, or leave --emit out"
        )
    return _shell(make(run))


def _refuse_what_trl_lacks(run: TrainingRun) -> None:
    """Its own scripts would train something else."""
    smooths = bool(run.label_smoothing) and run.trainer == "reward"
    for flag, is_given in (("--freeze-base", run.request.freeze_base), ("--label-smoothing", smooths)):
        if is_given:
            raise UsageError(f"trl reward has no {flag}, which only qserve has; leave it out, or leave --emit out")


def _refuse_rewards(run: TrainingRun, framework: str) -> None:
    """Raises UsageError for rewards that this trainer's command line can't name."""
    for one in run.rewards:
        if one.is_served:
            if framework != "openrlhf":
                raise UsageError(
                    f"{framework} calls a reward server through a function that you write (docs/trainers.md has "
                    f"one); name a checkpoint in place of --reward {one.target}"
                )
        elif is_recipe(one.target):
            raise UsageError(f"{framework} does not read recipes of qserve; serve it: qserve up --reward {one.target}")
    if framework != "ms-swift" and (len(run.rewards) > 1 or any(one.weight != 1 for one in run.rewards)):
        raise UsageError(
            f"{framework} takes one reward without a weight; combine several in a recipe, and serve that: qserve up "
            "--reward FILE.yaml"
        )


def _unwritten(run: TrainingRun, framework: str) -> list[str]:
    """Flags that the commands of other trainers do not carry."""
    request, schedule = run.request, run.schedule
    given = {
        "--freeze-base": request.freeze_base,
        "--fsdp": request.fsdp,
        "--lora-targets": request.tuning in ("lora", "qlora") and request.lora_targets != "all-linear",
        "--train-embeddings": request.train_embeddings,
        "--optimizer": request.optimizer not in ("adamw", "adamw-fused"),
        "--packing": run.packing,
        "--center-rewards": run.center_rewards is not None,
        "--label-smoothing": bool(run.label_smoothing),
        "--save-as": run.save_as != "sequence-classification",
        "--patience": schedule.patience is not None,
        "--max-steps": schedule.max_steps is not None,
        "--warmup-steps": bool(schedule.warmup_steps),
        "--epochs": framework == "openrlhf" and (schedule.epochs or 1) % 1 > 0,  # it counts whole ones
        "--seed": framework == "verl" and run.seed != 0,
        "--attention": framework == "verl" and request.attention == "eager",
    }
    return [flag for flag, is_given in given.items() if is_given]


def _shell(words: list[str]) -> str:
    """One flag a line, as people read them."""
    quoted = [shlex.quote(word) for word in words]
    lines: list[str] = []
    for word in quoted:
        starts = word.startswith("--") or ("=" in word and not word[:1].isupper() and "." in word.partition("=")[0])
        if lines and not starts:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return " \\\n  ".join(lines)
