"""Flags of a load, its latency targets and prices, and their conversion to a `SpeedRequest`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from qserve.cli.options.numbers import LARGEST, Count, FiniteRange
from qserve.planner.speed.load import THINK_S
from qserve.service.replicas import AUTO, NumReplicas

__all__ = ["load_options", "price_options"]

Function = TypeVar("Function", bound=Callable[..., Any])
_POSITIVE = Count(min=1)
_RATE = FiniteRange(0, min_open=True)


class _Milliseconds(click.ParamType):  # type: ignore[type-arg]
    """A time: 50ms, 1s, 1.5s; a plain number is milliseconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|)", str(value).strip())
        if match is None or float(match[1]) == 0:
            self.fail(f"{value!r} is not a duration; write for example 50ms or 1s", param, ctx)
        milliseconds = float(match[1]) * (1000 if match[2] == "s" else 1)
        if milliseconds > LARGEST:
            self.fail(f"{value!r} is too long: at most {LARGEST:,} ms", param, ctx)
        return milliseconds


class ReplicaCount(click.ParamType):  # type: ignore[type-arg]
    """A number of replicas, or auto."""

    name = "N|auto"
    most = 1024

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> NumReplicas:
        text = str(value).strip()
        if text == AUTO:
            return AUTO
        if not text.isascii() or not text.isdigit() or not 0 < int(text[:9]) <= self.most:
            self.fail(f"{text[:40]!r} is not a number of replicas; write 1 to {self.most:,}, or auto", param, ctx)
        return int(text)


_OPTIONS = (
    click.option("--input", "input_tokens", type=_POSITIVE, help="Tokens of a prompt [1000]."),
    click.option("--output", "output_tokens", type=_POSITIVE, help="Tokens of an answer [300]."),
    click.option("--concurrency", type=_POSITIVE, help="Requests that run at once, all the time."),
    click.option("--burst", type=_POSITIVE, help="Requests that arrive at the same time."),
    click.option("--rps", type=_RATE, help="Requests per second, with Poisson arrivals."),
    click.option("--users", type=_POSITIVE, help="Users with a pause before each question (--think-time)."),
    click.option("--think-time", type=_RATE, help=f"Mean pause of a user, in seconds [{THINK_S:g}]."),
    click.option(
        "--trace",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help='Arrivals in JSON lines: {"arrival": seconds, "input": tokens, "output": tokens}.',
    ),
    click.option("--num-prompts", type=_POSITIVE, help="Requests in all [10 per stream]."),
    click.option(
        "--prefix-share",
        type=FiniteRange(0, 1, max_open=True),
        help="Share of a prompt that is in the prefix cache [0].",
    ),
    click.option("--ttft", type=_Milliseconds(), help="Target: first token of 90 % of requests within 1s, 500ms, …"),
    click.option("--tpot", type=_Milliseconds(), help="Target: each further token within 50ms, …"),
    click.option(
        "--replicas",
        type=ReplicaCount(),
        help="Copies of the model, each on --tensor-parallel-size cards or a part of the CPU; auto: as many as fit, "
        "or as the load needs [1; with a load auto].",
    ),
)
_PRICE_OPTIONS = (
    click.option(
        "--prices",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="USD per hour and card, as TOML: [cards] rtx-4090 = 0.35 [configs/prices.toml].",
    ),
    click.option("--monthly", is_flag=True, help="Show prices per month."),
)


def load_options(function: Function) -> Function:
    """Adds the flags of a load and its latency targets."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def price_options(function: Function) -> Function:
    """Adds the flags of prices."""
    for option in reversed(_PRICE_OPTIONS):
        function = option(function)
    return function
