"""`qserve plan`: does it fit, with which quantization, placement and limits, and what to change if not."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qserve.cli.options.command import CommandGroup, model_options, needed_model, reward_revision_option
from qserve.cli.options.deployment import config_option, deployment_of, many_models
from qserve.cli.options.knowledge import knowledge_of, measurements_option
from qserve.cli.options.load import load_options, price_options
from qserve.cli.options.planning import plan_options
from qserve.cli.plan.next_step import given_flags, with_next_steps
from qserve.cli.up.checks import check_roles
from qserve.cli.up.passed_on import passed_options
from qserve.core.hardware import known_gpus
from qserve.planner.speed.price import price_table
from qserve.service.knowledge import Knowledge
from qserve.service.machine import Machine
from qserve.service.next_command import command_of
from qserve.service.plan import ServicePlan, plan_service, rank_cards
from qserve.service.replicas import AUTO
from qserve.service.request import ServiceRequest

if TYPE_CHECKING:
    from qserve.service.residents import ResidentsRequest

__all__ = ["command"]

_DOES_NOT_FIT = 3
# The options of `up` that --help repeats; the others are named in one sentence.
_SHOWN = ("reward_quant", "reward_engine", "reward_replicas", "max_length", "base", "judge")


class _WithTraining(CommandGroup):
    """A group that is a command itself (`qserve plan`); `qserve plan train` is imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["train"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != "train":
            return None
        command: click.Command = importlib.import_module("qserve.cli.plan.train").command
        return command


@click.group("plan", cls=_WithTraining, invoke_without_command=True)
@config_option
@model_options()
@click.option("--reward", help="A reward model that shares the cards with --model.")
@reward_revision_option
@click.option("--embed", help="An embedding model that shares the cards with --model.")
@plan_options
@load_options
@price_options
@click.option(
    "--engine-args", default="", help="As for `qserve up`: flags of adapters and images are included in the plan."
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as one JSON object.")
@click.option("--explain", is_flag=True, help="Print each term with its formula, its numbers and its source.")
@measurements_option
@click.pass_context
def command(ctx: click.Context, /, gpu: str | None, as_json: bool, explain: bool, monthly: bool, **values: Any) -> None:
    """Compute memory and speed of a model: does it fit, with which quantization, placement and limits?

    Takes every option of `qserve up` in addition to its own. Downloads only config.json and safetensors headers.
    Exit status: 0 fits, 3 does not, 2 bad input.

    \b
    qserve plan Qwen/Qwen3-32B --quant 4bit --gpu rtx-4090
    qserve plan Qwen/Qwen3-8B --reward ./my-reward-model --gpu a100-80gb
    qserve plan ./my-checkpoint --json
    qserve plan --config qwen3-32b-1x24gb
    qserve plan train --help
    """
    if ctx.invoked_subcommand is not None:
        return
    if (many := many_models(values)) is not None:
        _print_many(many, Machine.named(gpu), values, as_json)
        return
    if values["reward"] is None and values["embed"] is None:
        needed_model(values["model"], "qserve plan Qwen/Qwen3-8B")
    check_roles(values)
    request, machine = ServiceRequest.from_flags(values), Machine.named(None if gpu == "any" else gpu)
    if gpu == "any":
        _print_cheapest(ctx, request, machine, knowledge_of(values, machine), as_json, monthly, explain)
        return
    if values["ray"] is not None:
        request = replace(request, replicas=AUTO if machine.hardware.devices else None)
        click.secho("· planned as one node of the cluster; qserve up --ray looks at the nodes", err=True, fg="yellow")
    service = plan_service(request, machine, knowledge_of(values, machine))
    service = _with_next_steps(_with_formats(service) if explain else service, ctx, gpu)
    _warn(ctx, service)
    if as_json:
        click.echo(json.dumps(service.to_json(), indent=2, ensure_ascii=False))
    else:
        from qserve.terminal.service import show_service

        plans = [one.whole for one in service.models]
        show_service(plans, service.where, explain=explain, monthly=monthly)
    if not service.fits:
        sys.exit(_DOES_NOT_FIT)


def _print_many(many: ResidentsRequest, machine: Machine, values: dict[str, Any], as_json: bool) -> None:
    """The models of a file's `models:`. Exit status 3 where one can never be loaded."""
    from qserve.service.residents import plan_residents
    from qserve.terminal.residents import show_residents

    with tempfile.TemporaryDirectory(prefix="qserve-plan-") as folder:
        plan = plan_residents(many, machine, knowledge_of(values, machine), Path(folder))
    if as_json:
        click.echo(json.dumps(plan.to_json(), indent=2, ensure_ascii=False))
    else:
        deployment = deployment_of(click.get_current_context())
        assert deployment is not None, "it lists them"
        show_residents(plan, deployment.name)
    plan.check_fits()


def _with_formats(service: ServicePlan) -> ServicePlan:
    """With a note on what each format of a CPU would give, where they were compared."""
    if not service.formats:
        return service
    first = service.models[0]
    return service.with_first(replace(first, whole=replace(first.whole, notes=(*first.whole.notes, service.formats))))


def _with_next_steps(service: ServicePlan, ctx: click.Context, gpu: str | None) -> ServicePlan:
    """The service with whole commands, in the plan of its first model."""
    if len(service.models) > 1 and not service.fits:
        return service
    first = service.models[0]
    whole = with_next_steps(first.whole, ctx, gpu, service.hardware)
    return service.with_first(replace(first, whole=whole))


def _warn(ctx: click.Context, service: ServicePlan) -> None:
    """Print on standard error why it can't be served here or not on the preferred engine, and where the plan differs
    from what --config expects: --json stays JSON.
    """
    if service.passed_over:
        click.secho(f"· planned {service.passed_over}", err=True, fg="yellow")
    if service.obstacle:
        click.secho(f"· `qserve up` refuses this here: {service.obstacle}", err=True, fg="yellow")
    deployment = deployment_of(ctx)
    if deployment is None or service.chat is None:
        return
    reward = service.reward.whole if service.reward is not None else None
    for difference in deployment.expect.differences(service.chat.whole, reward):
        click.secho(f"· {deployment.path.name}: {difference}", err=True, fg="yellow")


def _print_cheapest(
    ctx: click.Context,
    request: ServiceRequest,
    machine: Machine,
    knowledge: Knowledge,
    as_json: bool,
    monthly: bool,
    explain: bool,
) -> None:
    """--gpu any: which cards carry the load, cheapest first."""
    if request.reward is not None or request.model is None:
        raise click.UsageError("--gpu any ranks cards for one model; leave --reward and --embed out")
    found = rank_cards(request, machine, knowledge)
    if unknown := [key for key in price_table(request.speed.prices) if key not in known_gpus()]:
        said = f"· not ranked: {', '.join(unknown)} (not in configs/gpus.toml)"
        click.secho(said, err=True, fg="yellow")
    if as_json:
        rows = [{"gpu": f"{key}:{count}", **layout.to_json(layout, False)} for key, count, layout in found]
        click.echo(json.dumps({"gpus": rows}, indent=2, ensure_ascii=False))
        return
    from qserve.terminal.speed import show_cheapest

    key, count, _ = found[0]
    first = command_of("plan", {**given_flags(ctx), "--gpu": f"{key}:{count}" if count > 1 else key})
    show_cheapest(found, first, monthly=monthly, explain=explain)


command.params.extend(passed_options(_SHOWN, [str(one.name) for one in command.params]))
