"""Commands that follow a plan, with the flags that were given: serving it, and planning it otherwise."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace

import click
from click.core import ParameterSource

from qserve.cli.options.deployment import deployment_of
from qserve.cli.options.planning import is_plan_option
from qserve.core.hardware import Hardware
from qserve.deploy.argv import flags_of
from qserve.planner.plan import Plan, Suggestion
from qserve.service.next_command import Flags, command_of, flags_in, with_serving_command, words_of

__all__ = ["given_flags", "with_next_steps"]

_OF_THE_OUTPUT = ("--json", "--explain")
_TOLD = ("model", "gpu", "replicas", "as_json", "explain")
"""Options that a planned way out has told of itself, or was planned without."""
_SECRET = "api_key"  # noqa: S105 - the name of an option, whose value no printed command repeats


def given_flags(ctx: click.Context) -> Flags:
    """What stands on the command line, in the order of the options, without a key."""
    deployment = deployment_of(ctx)
    flags: Flags = {"--config": deployment.name} if deployment else {}
    return {**flags, **_flags(ctx, ctx.command.params, ParameterSource.COMMANDLINE)}


def _flags(ctx: click.Context, options: Iterable[click.Parameter], *sources: ParameterSource) -> Flags:
    """Of those `options` that were given by one of the `sources`, but for a key."""
    values = {option: ctx.params.get(str(option.name)) for option in options if option.name != _SECRET}
    given = [option for option in values if ctx.get_parameter_source(str(option.name)) in sources]
    return flags_in(one for option in given if values[option] is not None for one in flags_of(option, values[option]))


def with_next_steps(plan: Plan, ctx: click.Context, gpu: str | None, hardware: Hardware) -> Plan:
    """The plan with the command that serves it, where it fits, and with whole commands for all that would change it."""
    return with_serving_command(_with_whole_commands(plan, ctx), given_flags(ctx), gpu, hardware)


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
    return shlex.join([*shlex.split(command), *words_of(_flags(ctx, options, *sources))])


def _changed(flags: Flags, changes: str) -> str:
    """`qserve plan` as it was called, with other values of some flags."""
    words = shlex.split(changes)
    kept = {flag: value for flag, value in flags.items() if flag not in _OF_THE_OUTPUT}
    return command_of("plan", {**kept, **dict(zip(words[::2], words[1::2], strict=True))})
