"""The flags of `qserve train` beyond those of `qserve plan train`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from qserve.cli.options.numbers import Count, FiniteRange
from qserve.cli.options.url import ServerUrl
from qserve.training.emit import FRAMEWORKS

__all__ = ["METHODS", "run_options"]

Function = TypeVar("Function", bound=Callable[..., Any])

METHODS = ("sft", "lora", "qlora", "reward", "dpo", "grpo", "ppo")
_STEPS, _SHARE = Count(1), FiniteRange(0, 1)
_FOLDER = click.Path(path_type=Path)

_OPTIONS = (
    click.option(
        "--beside-service",
        type=ServerUrl(),
        help="A service of qserve up whose models take turns: it makes room for the run, and gets it back.",
    ),
    click.option(
        "--meanwhile",
        type=click.Choice(["wait", "refuse"]),
        default="wait",
        show_default=True,
        help="Requests to that service for models without room.",
    ),
    click.option("--service-key", envvar="QSERVE_API_KEY", default="", help="Admin key of that service, if any."),
    click.option(
        "--data", help="JSON lines, JSON, Parquet or Arrow: a file, a folder, a data set of the hub; demo: 260 pairs."
    ),
    click.option("--eval-data", help="Data to evaluate on [a held-out share of the prompts]."),
    click.option("--eval-share", type=_SHARE, default=0.05, show_default=True, help="Share of prompts held out."),
    click.option("--max-broken", type=_SHARE, default=0.01, show_default=True, help="Tolerated share of bad rows."),
    click.option("--gpus", type=_STEPS, help="Cards of this machine to train on [all]; on the CPU: processes [1]."),
    click.option("--output", type=_FOLDER, help="Folder for model, checkpoints and configuration [below --state-dir]."),
    click.option("--max-steps", type=_STEPS, help="Optimizer steps [by --epochs]."),
    click.option(
        "--epochs",
        type=FiniteRange(0, min_open=True),
        help="Passes over the data [1; of little data up to 3, for 100 steps].",
    ),
    click.option(
        "--learning-rate",
        type=FiniteRange(0, min_open=True),
        help="Largest step of the optimizer [by method, and by the model's width].",
    ),
    click.option(
        "--warmup-steps", type=Count(0), default=0, show_default=True, help="Steps until the learning rate is reached."
    ),
    click.option("--seed", type=Count(0), default=0, show_default=True, help="Random seed."),
    click.option("--eval-steps", type=_STEPS, help="Steps between evaluations [a tenth of the run, at most 200]."),
    click.option("--save-steps", type=_STEPS, help="Steps between checkpoints [as --eval-steps]."),
    click.option("--save-total-limit", type=_STEPS, default=2, show_default=True, help="Checkpoints that are kept."),
    click.option("--patience", type=_STEPS, help="reward: stop after so many evaluations without improvement [never]."),
    click.option("--center-rewards", type=FiniteRange(0), help="reward: pull the mean to 0 (0.01 is usual) [off]."),
    click.option("--labels", help="reward: names of the scores in each row, with commas between [as the data says]."),
    click.option("--label-weights", help="reward: NAME=WEIGHT,…: weight of each label in the reward [equal]."),
    click.option(
        "--label-smoothing",
        type=FiniteRange(0, 0.5),
        default=0.0,
        show_default=True,
        help="reward, dpo: share of pairs that may be swapped.",
    ),
    click.option(
        "--save-as",
        type=click.Choice(["sequence-classification", "reward-head"]),
        default="sequence-classification",
        show_default=True,
        help="reward: transformers' layout, or a linear reward_head over base_model.",
    ),
    click.option(
        "--reward",
        "rewards",
        multiple=True,
        help="grpo: rewards by a server's URL, a checkpoint, or a YAML of rules; WEIGHT=… before each of several.",
    ),
    click.option("--num-generations", type=Count(2), default=8, show_default=True, help="grpo: rollouts per prompt."),
    click.option("--packing", is_flag=True, help="sft: several rows in one sequence of --max-length."),
    click.option("--num-workers", type=Count(0), default=0, show_default=True, help="Processes that prepare batches."),
    click.option("--resume", is_flag=True, help="Continue in --output from its last checkpoint [the newest run]."),
    click.option(
        "--emit", type=click.Choice(FRAMEWORKS), help="Print the command of another trainer, and run nothing."
    ),
    click.option("--auto", is_flag=True, help="If the run does not fit, make the first change after which it does."),
    click.option(
        "--state-dir", type=_FOLDER, envvar="QSERVE_STATE_DIR", help="Where runs are kept [~/.local/state/qserve]."
    ),
)


def run_options(function: Function) -> Function:
    """Adds them all."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
