"""Options of a reward model, shared by all commands that load one: what the checkpoint itself does not say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from qserve.cli.options.numbers import Count
from qserve.cli.options.planning import plan_option
from qserve.planner import PlanRequest, plan_request
from qserve.reward.settings import FLAGS, POOLINGS, TRUNCATIONS, RewardSettings

__all__ = ["LOADING_FLAGS", "REWARD_FLAGS", "loading_options", "request_of", "reward_options", "settings_of"]

Function = TypeVar("Function", bound=Callable[..., Any])

REWARD_FLAGS = FLAGS
"""Options that `reward_options` adds, by field name."""

# In the order of --help. The names are RewardSettings' fields.
_OPTIONS = (
    click.option(
        "--pooling", type=click.Choice(POOLINGS), help="Token position at which the head is applied [by format]."
    ),
    click.option(
        "--position", type=Count(), default=-1, help="The token that --pooling position reads; -1 is the last."
    ),
    click.option("--head", help="Name of the head's tensors in the checkpoint, for example reward_head."),
    click.option("--template", type=click.Path(exists=True), help="Chat template (Jinja) instead of the tokenizer's."),
    click.option("--max-length", type=Count(min=1), help="Tokens of a scored text [what the plan allows]."),
    click.option(
        "--truncate",
        type=click.Choice(TRUNCATIONS),
        default="refuse",
        show_default=True,
        help="Longer texts: cut the beginning, cut the end, or refuse.",
    ),
    click.option("--base", help="Folder of the base model, for adapters and single files."),
    click.option("--weights", metavar="NAME=W,…", help="Weight of each label in the reward."),
    click.option("--answer-tokens", metavar="YES,NO", help="A causal model is a reranker: log-odds of these tokens."),
    click.option(
        "--judge", metavar="TEMPLATE", help="A causal model is a judge: pointwise, pairwise, or your own template."
    ),
    click.option("--step-token", help="The token that ends a step (process reward models)."),
)
# Options of a plan, for commands that load a reward model in their own process.
_LOADING = (
    click.option(
        "--quant", default="auto", show_default=True, help="Quantization of the body: auto, bf16, fp16, int8, 4bit, …"
    ),
    click.option("--dtype", help="Compute in float16, bfloat16 or float32 [the checkpoint's own]."),
    click.option("--max-num-batched-tokens", type=Count(min=1), help="Tokens of one row of texts."),
    plan_option("cpu_activations"),
)


LOADING_FLAGS = ("quant", "dtype", "max_num_batched_tokens", "cpu_activations")
"""Options that `loading_options` adds, by field name."""


def reward_options(function: Function) -> Function:
    """Adds every option of a `RewardSettings`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def loading_options(function: Function) -> Function:
    """Adds the options for loading a reward model in this process."""
    for option in reversed(_LOADING):
        function = option(function)
    return function


def request_of(values: Mapping[str, Any]) -> PlanRequest:
    """The plan's request in a command's keyword arguments."""
    return plan_request(**{name: values[name] for name in LOADING_FLAGS if values.get(name) is not None})


def settings_of(values: dict[str, Any]) -> RewardSettings:
    """The settings in a command's keyword arguments, which are removed from `values`."""
    return RewardSettings(**{name: values.pop(name) for name in FLAGS})
