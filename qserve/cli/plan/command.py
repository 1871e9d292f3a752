"""`qserve plan`: does it fit, with which quantization, placement and limits, and what to change if not."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from qserve.cli.doctor.measured import measured_speed
from qserve.cli.learning import with_learned
from qserve.cli.options.chat_templates import with_checked_template
from qserve.cli.options.command import CommandGroup, model_options, needed_model
from qserve.cli.options.deployment import config_option, deployment_of
from qserve.cli.options.load import load_options, price_options, speed_request_of
from qserve.cli.options.numbers import Count
from qserve.cli.options.planning import hardware_of, plan_options, request_of
from qserve.cli.plan.next_step import command_of, given_flags, with_next_steps
from qserve.cli.state import state_folder
from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware, known_gpus
from qserve.engine.vllm.counted_flags import with_counted_flags
from qserve.hub import resolve
from qserve.planner import Plan, PlanRequest
from qserve.planner.engine import option_value, with_same_rounding
from qserve.planner.memory.host import with_host
from qserve.planner.replicas import NumReplicas, as_one, plan_both, plan_replicas
from qserve.planner.share import SharedPlan, make_shared_plan
from qserve.planner.speed.choice.one_stream import with_one_stream
from qserve.planner.speed.plan import cheapest_cards, plan_for_load
from qserve.planner.speed.price import price_table
from qserve.planner.speed.quantization import weighed_by_speed
from qserve.planner.speed.request import SpeedRequest

__all__ = ["command"]

_DOES_NOT_FIT = 3


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
@click.option(
    "--reward-replicas", type=Count(min=1, max=1024), default=1, show_default=True, help="Servers of the reward model."
)
@plan_options
@load_options
@price_options
@click.option(
    "--engine-args", default="", help="As for `qserve up`: flags of adapters and images are included in the plan."
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as one JSON object.")
@click.option("--explain", is_flag=True, help="Print each term with its formula, its numbers and its source.")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    envvar="QSERVE_STATE_DIR",
    help="Run store with the measurements of earlier runs [~/.local/state/qserve].",
)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: str | None,
    reward: str | None,
    gpu: str | None,
    reward_replicas: int,
    engine_args: str,
    as_json: bool,
    explain: bool,
    state_dir: Path | None,
    **values: Any,
) -> None:
    """Compute memory and speed of a model: does it fit, with which quantization, placement and limits?

    Downloads only config.json and safetensors headers. Exit status: 0 fits, 3 does not, 2 bad input.

    \b
    qserve plan Qwen/Qwen3-32B --quant 4bit --gpu rtx-4090
    qserve plan Qwen/Qwen3-8B --reward ./my-reward-model --gpu a100-80gb
    qserve plan ./my-checkpoint --json
    qserve plan --config qwen3-32b-1x24gb
    qserve plan train --help
    """
    if ctx.invoked_subcommand is not None:
        return
    model = needed_model(model, "qserve plan Qwen/Qwen3-8B")
    wanted = speed_request_of(values)
    hardware = with_host(hardware_of(None if gpu == "any" else gpu))
    request = with_counted_flags(request_of(values), engine_args)
    request = with_learned(request, state_folder(state_dir), model, gpu, is_off=values["no_learn"])
    checkpoint = with_checked_template(resolve(model), engine_args)
    known = measured_speed(state_folder(state_dir), checkpoint, hardware, gpu, is_off=values["no_learn"])
    wanted = replace(wanted, measured=known)
    if gpu == "any":
        _print_cheapest(ctx, model, reward, hardware, request, wanted, as_json, values["monthly"], explain)
        return
    asked, weighed = request, weighed_by_speed(checkpoint, hardware, request, known)
    request, notes = weighed.request, (weighed.why, weighed.figures if explain else "")
    checkpoint = replace(checkpoint, messages=(*checkpoint.messages, *filter(None, notes)))
    if reward is None:
        if reward_replicas > 1:
            raise click.UsageError("--reward-replicas is for a reward model, and none is named; add --reward")
        plan = _planned(checkpoint, hardware, request, wanted, values["replicas"], asked)
        plan = with_next_steps(plan, ctx, gpu, hardware)
        _print(plan, as_json, explain, values["monthly"])
        fits, shared = plan.fits, None
    else:
        from qserve.reward.find import planned_reward  # imports YAML and Jinja

        counts = (values["replicas"] or 1, reward_replicas)
        shared = _shared(checkpoint, planned_reward(reward), hardware, request, counts)
        if shared.fits:
            shared = replace(shared, chat=with_next_steps(shared.chat, ctx, gpu, hardware))
        _print_shared(shared, as_json, explain)
        plan, fits = shared.chat, shared.fits
    _warn_of_differences(ctx, plan, shared.reward if shared else None)
    if not fits:
        sys.exit(_DOES_NOT_FIT)


def _shared(
    chat: Checkpoint, reward: Checkpoint, hardware: Hardware, request: PlanRequest, counts: tuple[NumReplicas, int]
) -> SharedPlan:
    """One model of each kind, or replicas; each kind is one plan over all of its devices."""
    scoring = with_same_rounding(PlanRequest(), request)
    if counts == (1, 1):
        return make_shared_plan(chat, reward, hardware, request, scoring)
    both = plan_both(chat, reward, hardware, (request, scoring), counts)
    return SharedPlan(as_one(both.chat), as_one(both.reward), both.where)


def _planned(
    checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, wanted: SpeedRequest,
    replicas: NumReplicas | None, asked: PlanRequest,
) -> Plan:  # fmt: skip
    """The given number of replicas, on whole cards or parts of a device; or the layout that suits the load."""
    is_apart = isinstance(replicas, int) and replicas <= len(hardware.devices)
    one_server = replicas in (None, 1) and not (option_value(request, "data_parallel_size") or 1) > 1
    if one_server or is_apart or (wanted.load is not None and hardware.devices):
        return plan_for_load(checkpoint, hardware, request, wanted, asked)
    plan = as_one(plan_replicas(checkpoint, hardware, request, replicas or 1))
    return with_one_stream(plan, checkpoint, hardware, wanted.measured)


def _warn_of_differences(ctx: click.Context, plan: Plan, reward: Plan | None) -> None:
    """Print where the plan differs from what --config expects, on standard error: --json stays JSON."""
    deployment = deployment_of(ctx)
    if deployment is None:
        return
    for difference in deployment.expect.differences(plan, reward):
        click.secho(f"· {deployment.path.name}: {difference}", err=True, fg="yellow")


def _print_cheapest(
    ctx: click.Context, model: str, reward: str | None, hardware: Hardware, request: PlanRequest, wanted: SpeedRequest,
    as_json: bool, monthly: bool, explain: bool,
) -> None:  # fmt: skip
    """--gpu any: which cards carry the load, cheapest first."""
    if reward is not None:
        raise click.UsageError("--gpu any ranks cards for one model; leave --reward out")
    found = cheapest_cards(resolve(model), hardware, request, wanted)
    if unknown := [key for key in price_table(wanted.prices) if key not in known_gpus()]:
        said = f"· not ranked: {', '.join(unknown)} (not in configs/gpus.toml)"
        click.secho(said, err=True, fg="yellow")
    if as_json:
        rows = [{"gpu": f"{key}:{count}", **layout.to_json(layout, False)} for key, count, layout in found]
        click.echo(json.dumps({"gpus": rows}, indent=2, ensure_ascii=False))
        return
    from qserve.cli.plan.show_speed import show_cheapest

    key, count, _ = found[0]
    first = command_of("plan", {**given_flags(ctx), "--gpu": f"{key}:{count}" if count > 1 else key})
    show_cheapest(found, first, monthly=monthly, explain=explain)


def _print(plan: Plan, as_json: bool, explain: bool, monthly: bool = False) -> None:
    if as_json:
        click.echo(json.dumps(plan.to_json(), indent=2, ensure_ascii=False))
        return
    from qserve.cli.plan.show import show_next_step, show_plan
    from qserve.cli.plan.show_speed import show_speed

    show_plan(plan, explain)
    if plan.speed:
        show_speed(plan.speed, explain, monthly=monthly)
    show_next_step(plan)


def _print_shared(shared: SharedPlan, as_json: bool, explain: bool) -> None:
    if as_json:
        both = {**shared.chat.to_json(), "fits": shared.fits, "reward": shared.reward.to_json()}
        click.echo(json.dumps(both, indent=2, ensure_ascii=False))
        return
    from qserve.cli.plan.show import show_next_step, show_plan

    click.secho(shared.where, bold=True)
    show_plan(replace(shared.chat, host=()), explain)
    show_plan(shared.reward, explain)  # what both share, once, at the end
    show_next_step(shared.chat)
