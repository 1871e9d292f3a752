"""What runs on this machine: the request as it was asked for, or with --auto the cheapest change of it that fits."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace

import click

from qserve.cli.options.json_output import print_json
from qserve.errors import DoesNotFit, MissingExtra, UsageError
from qserve.packages import why_no_server
from qserve.planner.training import FittingChange, TrainingJob, TrainingPlan, fitting_jobs
from qserve.planner.training.command import train_command
from qserve.terminal.console import console_of

__all__ = ["fitting_request", "need_trl"]


def need_trl() -> None:
    """Raises MissingExtra or UsageError where what trains is not installed. Imports nothing."""
    if (why := why_no_server()) is not None:
        raise UsageError(f"`qserve train` {why}")
    missing = [name for name in ("trl", "datasets", "peft", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtra(missing[0], "`qserve train`", *missing[1:])


def fitting_request(
    job: TrainingJob,
    auto: bool,
    data: str | None,
    messages: Sequence[str] = (),
    *,
    elsewhere: bool = False,
    as_json: bool = False,
) -> tuple[TrainingJob, TrainingPlan]:
    """(the job that runs, its plan). Raises DoesNotFit with suggestions where `auto` may not take one.

    `elsewhere`: another machine runs it, with whatever packages and cards the change needs. `as_json`: the plan is
    shown on standard error; one that does not fit is the object on standard output.
    """
    from qserve.cli.plan.show_training import show_training

    console = console_of(stderr=as_json)
    plan = job.plan()
    if plan.fits:
        show_training(replace(plan, notes=(*messages, *plan.notes)), console=console)
        return job, plan
    changes = tuple(change for change in fitting_jobs(job) if elsewhere or _can_run(change, job))
    if auto and changes:
        taken = changes[0].suggestion
        click.echo(f"does not fit: {plan.why_not}\n--auto: {taken.change} ({taken.cost})", err=as_json)
        plan = changes[0].job.plan()
        show_training(plan, console=console)
        return changes[0].job, plan
    offered = tuple(replace(change.suggestion, command=_as_run(change.job, data)) for change in changes)
    plan = replace(plan, notes=(*messages, *plan.notes), suggestions=offered)
    if as_json:
        print_json(plan.to_json())
    else:
        show_training(plan)
    none = "" if changes else "; no single change, pair or triple of them helps on this machine"
    raise DoesNotFit(f"the run is not started: {plan.why_not}{none}")


def _can_run(change: FittingChange, job: TrainingJob) -> bool:
    """Only on the cards that are here, and by packages that are here."""
    needs_deepspeed = change.job.request.zero_stage > 0 and importlib.util.find_spec("deepspeed") is None
    needs_bnb = change.job.request.optimizer == "adamw-8bit" and importlib.util.find_spec("bitsandbytes") is None
    return change.job.devices == job.devices and not (needs_deepspeed or needs_bnb)


def _as_run(job: TrainingJob, data: str | None) -> str:
    """The job's command as one of `qserve train`."""
    return train_command(job.model, job.request, len(job.devices), data or "FILE", job.gpu, on_cpu=job.on_cpu)
