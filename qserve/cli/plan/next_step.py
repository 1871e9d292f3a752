"""Commands that follow a plan, with the flags that were given: serving it, and planning it otherwise."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby

import click
from click.core import ParameterSource

from qserve.cli.options.deployment import deployment_of
from qserve.cli.options.planning import is_plan_option
from qserve.core.hardware import Hardware
from qserve.deploy.words import flags_of
from qserve.planner.plan import Plan, Suggestion

__all__ = ["OF_PLAN_ALONE", "command_of", "given_flags", "machine_of", "with_next_steps", "with_serving_command"]

Flags = Mapping[str, str | None]
"""Flags with their values; None: a switch."""

OF_PLAN_ALONE = frozenset({"--gpu", "--json", "--explain", "--prices", "--monthly"})
_OF_THE_OUTPUT = ("--json", "--explain")
_TOLD = ("model", "gpu", "replicas", "as_json", "explain")
"""Options that a planned way out has told of itself, or was planned without."""


def given_flags(ctx: click.Context) -> dict[str, str | None]:
    """What stands on the command line, in the order of the options."""
    deployment = deployment_of(ctx)
    flags: dict[str, str | None] = {"--config": deployment.name} if deployment else {}
    return flags | _flags(ctx, ctx.command.params, ParameterSource.COMMANDLINE)


def _flags(ctx: click.Context, options: Iterable[click.Parameter], *sources: ParameterSource) -> dict[str, str | None]:
    """Of those `options` that were given by one of the `sources`."""
    values = {option: ctx.params.get(str(option.name)) for option in options}
    given = [option for option in values if ctx.get_parameter_source(str(option.name)) in sources]
    return dict(one for option in given if values[option] is not None for one in flags_of(option, values[option]))


def command_of(name: str, flags: Flags) -> str:
    """`qserve <name>` with the flags, as a shell takes it."""
    return shlex.join(["qserve", name, *_words(flags)])


def _words(flags: Flags) -> list[str]:
    return [word for flag, value in flags.items() for word in (flag, value) if word is not None]


def with_next_steps(plan: Plan, ctx: click.Context, gpu: str | None, hardware: Hardware) -> Plan:
    """The plan with the command that serves it, where it fits, and with whole commands for all that would change it."""
    return with_serving_command(_with_whole_commands(plan, ctx), given_flags(ctx), gpu, hardware)


def with_serving_command(plan: Plan, flags: Flags, gpu: str | None, hardware: Hardware) -> Plan:
    """The plan with the command that serves it, where it fits."""
    if not plan.fits:
        return plan
    served = {flag: value for flag, value in flags.items() if flag not in OF_PLAN_ALONE}
    if gpu == "none":
        served["--gpu"] = "none"
    return replace(plan, next_command=command_of("up", served), machine=machine_of(gpu, hardware))


def _with_whole_commands(plan: Plan, ctx: click.Context) -> Plan:
    """Ways of the load name the flags that they change; the others have all of the plan, and none of the load."""
    of_load = list((plan.speed or {}).get("suggestions") or ())
    others = [
        replace(way, command=_completed(ctx, way.command)) for way in plan.suggestions if vars(way) not in of_load
    ]
    ways = [Suggestion(**{**way, "command": _changed(given_flags(ctx), way["command"])}) for way in of_load]
    speed = {**plan.speed, "suggestions": [vars(way) for way in ways]} if plan.speed and ways else plan.speed
    return replace(plan, speed=speed, suggestions=(*others, *ways))


def _completed(ctx: click.Context, command: str) -> str:
    """With what was given beside the plan's own options; without replicas, since it was planned as one server."""
    sources = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
    options = [one for one in ctx.command.params if not is_plan_option(str(one.name)) and one.name not in _TOLD]
    return shlex.join([*shlex.split(command), *_words(_flags(ctx, options, *sources))])


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
