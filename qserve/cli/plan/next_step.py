"""Commands that follow a plan, with the flags that were given: serving it, and planning it otherwise."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

import click
from click.core import ParameterSource

from qserve.cli.options.deployment import deployment_of
from qserve.core.hardware import Hardware
from qserve.planner.plan import Plan, Suggestion

__all__ = ["OF_PLAN_ALONE", "command_of", "given_flags", "machine_of", "with_next_steps"]

Flags = Mapping[str, str | None]
"""Flags with their values; None: a switch."""

OF_PLAN_ALONE = frozenset({"--gpu", "--json", "--explain", "--prices", "--monthly"})
_OF_THE_OUTPUT = ("--json", "--explain")


def given_flags(ctx: click.Context) -> dict[str, str | None]:
    """What stands on the command line, in the order of the options."""
    deployment = deployment_of(ctx)
    flags: dict[str, str | None] = {"--config": deployment.name} if deployment else {}
    for option in ctx.command.params:
        name, value = str(option.name), ctx.params.get(str(option.name))
        if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE or value is None:
            continue
        if isinstance(value, bool):
            flags[option.opts[-1] if value else option.secondary_opts[-1]] = None
        else:
            flags[option.opts[0]] = _word(option, value)
    return flags


def _word(option: click.Parameter, value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    if option.type.name == "time":  # kept in milliseconds
        return f"{value:g}ms" if value % 1000 else f"{value / 1000:g}s"
    return f"{value:g}"


def command_of(name: str, flags: Flags) -> str:
    """`qserve <name>` with the flags, as a shell takes it."""
    words = [word for flag, value in flags.items() for word in (flag, value) if word is not None]
    return shlex.join(["qserve", name, *words])


def with_next_steps(plan: Plan, flags: Flags, gpu: str | None, hardware: Hardware) -> Plan:
    """The plan with the command that serves it, where it fits, and with whole commands for changes of its load."""
    if plan.speed and plan.speed.get("suggestions"):
        ways = [Suggestion(**{**way, "command": _changed(flags, way["command"])}) for way in plan.speed["suggestions"]]
        others = [way for way in plan.suggestions if vars(way) not in plan.speed["suggestions"]]
        speed: dict[str, Any] = {**plan.speed, "suggestions": [vars(way) for way in ways]}
        plan = replace(plan, speed=speed, suggestions=(*others, *ways))
    if not plan.fits:
        return plan
    served = {flag: value for flag, value in flags.items() if flag not in OF_PLAN_ALONE}
    if gpu == "none":
        served["--gpu"] = "none"
    return replace(plan, next_command=command_of("up", served), machine=machine_of(gpu, hardware))


def machine_of(gpu: str | None, hardware: Hardware) -> str:
    """The cards on which what was planned for `--gpu` is to be called; empty: here."""
    return "" if gpu in (None, "none") else _named_cards(hardware)


def _named_cards(hardware: Hardware) -> str:
    """4 × NVIDIA H100 80GB HBM3; a single card without its number."""
    groups = [(name, len(list(same))) for name, same in groupby(card.name for card in hardware.devices)]
    return " and ".join(name if count == 1 and len(groups) == 1 else f"{count} × {name}" for name, count in groups)


def _changed(flags: Flags, changes: str) -> str:
    """`qserve plan` as it was called, with other values of some flags."""
    words = shlex.split(changes)
    kept = {flag: value for flag, value in flags.items() if flag not in _OF_THE_OUTPUT}
    return command_of("plan", {**kept, **dict(zip(words[::2], words[1::2], strict=True))})
