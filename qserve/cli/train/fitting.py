"""What runs on this machine: the request as it was asked for, or with --auto the cheapest change of it that fits."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace

import click

from qserve.core.hardware import Hardware
from qserve.errors import DoesNotFit, MissingExtra, UsageError
from qserve.packages import why_no_server
from qserve.planner.training import FittingChange, TrainingJob, TrainingPlan, fitting_jobs

__all__ = ["default_precision", "fitting_request", "need_trl"]


def need_trl() -> None:
    """Raises MissingExtra or UsageError where what trains is not installed. Imports nothing."""
    if (why := why_no_server()) is not None:
        raise UsageError(f"`qserve train` {why}")
    missing = [name for name in ("trl", "datasets", "peft", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtra(missing[0], "`qserve train`", *missing[1:])


def default_precision(hardware: Hardware, zero_stage: int) -> str:
    """fp32 on a CPU, whose results can be repeated bit by bit; DeepSpeed's on ZeRO; else autocast over fp32 weights."""
    if not hardware.devices:
        return "fp32"
    return "mixed" if zero_stage else "amp"


def fitting_request(
    job: TrainingJob, auto: bool, data: str | None, messages: Sequence[str] = (), *, elsewhere: bool = False
) -> tuple[TrainingJob, TrainingPlan]:
    """(the job that runs, its plan). Raises DoesNotFit with suggestions where `auto` may not take one.

    `elsewhere`: another machine runs it, with whatever packages and cards the change needs.
    """
    from qserve.cli.plan.show_training import show_training

    plan = job.plan()
    if plan.fits:
        show_training(replace(plan, notes=(*messages, *plan.notes)))
        return job, plan
    changes = tuple(change for change in fitting_jobs(job) if elsewhere or _can_run(change, job))
    if auto and changes:
        click.echo(
            f"does not fit: {plan.why_not}\n--auto: {changes[0].suggestion.change} ({changes[0].suggestion.cost})"
        )
        plan = changes[0].job.plan()
        show_training(plan)
        return changes[0].job, plan
    offered = tuple(replace(change.suggestion, command=_as_run(change, data)) for change in changes)
    show_training(replace(plan, notes=(*messages, *plan.notes), suggestions=offered))
    none = "" if changes else "; no single change, pair or triple of them helps on this machine"
    raise DoesNotFit(f"the run is not started: {plan.why_not}{none}")


def _can_run(change: FittingChange, job: TrainingJob) -> bool:
    """Only on the cards that are here, and by packages that are here."""
    needs_deepspeed = change.job.request.zero_stage > 0 and importlib.util.find_spec("deepspeed") is None
    needs_bnb = change.job.request.optimizer == "adamw-8bit" and importlib.util.find_spec("bitsandbytes") is None
    return change.job.devices == job.devices and not (needs_deepspeed or needs_bnb)


def _as_run(change: FittingChange, data: str | None) -> str:
    """The plan's command as one of `qserve train`."""
    words = change.suggestion.command.replace("qserve plan train --method ", "qserve train ", 1).replace(
        " --tiled-loss", ""
    )
    return f"{words} --data {data or 'FILE'}"
