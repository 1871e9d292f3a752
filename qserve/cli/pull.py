"""`qserve pull`: fetch what a plan loads from the hub, before it is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qserve.cli.options.command import Command, model_options, needed_model
from qserve.cli.options.deployment import config_option
from qserve.cli.options.knowledge import knowledge_of, measurements_option
from qserve.cli.options.planning import plan_options
from qserve.cli.plan.next_step import given_flags
from qserve.cli.progress import progress_line, resumable
from qserve.cli.up.checks import check_roles
from qserve.cli.up.passed_on import passed_options
from qserve.errors import DoesNotFit, UsageError
from qserve.hub import resolve
from qserve.hub.cache import commit_of
from qserve.hub.resolve import id_of
from qserve.hub.revisions import split_revision
from qserve.planner.plan import Plan
from qserve.service.machine import Machine
from qserve.service.next_command import OF_PLAN_ALONE, command_of
from qserve.service.plan import plan_service
from qserve.service.request import ServiceRequest
from qserve.units import format_bytes

if TYPE_CHECKING:
    from qserve.hub.download import Listing

__all__ = ["command"]

_OWN = ("--anyway", "--no-plan", "--state-dir")
_SHORT_COMMIT = 8


@click.command("pull", cls=Command)
@config_option
@model_options()
@plan_options
@click.option("--anyway", is_flag=True, help="Fetch it although it does not fit on this machine.")
@click.option(
    "--no-plan", is_flag=True, help="Fetch MODEL itself, whatever it is: a reward model, an embedder, an adapter."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@measurements_option
@click.pass_context
def command(ctx: click.Context, /, gpu: str | None, anyway: bool, no_plan: bool, as_json: bool, **values: Any) -> None:
    """Fetch a model from the hub: what its plan loads, resumed where it broke off, and verified.

    Plans first, as `qserve plan`, and takes every option of `qserve up` in addition to its own: which checkpoint is
    loaded (a quantized sibling, where one is better), whether it fits, and whether the disk has room. HF_ENDPOINT names
    a mirror, HF_HOME the folder of models. Exit status: 0 it is there, 3 does not fit, 2 bad input or no such model.

    \b
    qserve pull Qwen/Qwen3-8B
    qserve pull Qwen/Qwen3-32B --quant 4bit --gpu rtx-4090
    qserve pull --config qwen3-32b-1x24gb
    qserve pull my-org/my-reward-model --no-plan
    """
    model = needed_model(values["model"], "qserve pull Qwen/Qwen3-8B")
    plan = None if no_plan else _planned(values, gpu, anyway=anyway, is_told=not as_json)
    named = model if plan is None or plan.quant.checkpoint == plan.model.id else plan.quant.checkpoint
    folder, num_bytes = _folder_of(named, is_planned=plan is not None)
    if as_json:
        row = {"id": split_revision(named)[0], "revision": commit_of(folder), "folder": str(folder)}
        click.echo(json.dumps({**row, "fetched_bytes": num_bytes}, indent=2))
        return
    click.echo(f"{'Fetched and verified' if num_bytes else 'It is there'}: {folder}")
    if plan is not None:
        flags = {flag: value for flag, value in given_flags(ctx).items() if flag not in (*OF_PLAN_ALONE, *_OWN)}
        click.echo(f"Serve it: {command_of('up', flags)}")


def _planned(values: dict[str, Any], gpu: str | None, *, anyway: bool, is_told: bool) -> Plan:
    """Tells whether it fits. Raises DoesNotFit with what would, unless it is fetched `anyway`."""
    from qserve.terminal.plan import show_headline

    check_roles(values)
    machine = Machine.named(gpu)
    service = plan_service(ServiceRequest.from_flags(values), machine, knowledge_of(values, machine))
    assert service.chat is not None, "a model is named"
    if is_told:
        show_headline(service.chat.whole)
    if not anyway:
        try:
            service.check_fits()
        except DoesNotFit as error:
            raise DoesNotFit(f"{error}\nNothing was fetched; --anyway fetches it all the same") from None
    return service.chat.whole


def _folder_of(model: str, *, is_planned: bool) -> tuple[Path, int]:
    """Where it is, and how many bytes had to come for that."""
    name, revision = split_revision(model)
    if is_planned and (folder := resolve(model).folder) is not None:
        return folder, 0
    if "/" not in (name := id_of(name)):
        raise UsageError(f"{name!r} is no model of the hub; --no-plan takes one by its id: ORGANISATION/NAME")
    from qserve.hub.download import fetch, listed

    with progress_line() as line, resumable("What came is kept"):
        line.phase(f"asking the hub for {name}", is_short=True)
        listing = listed(name, revision)
        listing.check_disk()
        line.say(_told(listing))
        if missing := listing.num_bytes_missing:
            line.phase(f"fetching {name}")
        return fetch(name, revision, line.arrived), missing


def _told(listing: Listing) -> str:
    num_bytes, missing = listing.num_bytes, listing.num_bytes_missing
    here = f", {format_bytes(num_bytes - missing)} of it here" if missing < num_bytes else ""
    return (
        f"{listing.name} at {listing.commit[:_SHORT_COMMIT]}: {format_bytes(num_bytes)} in {len(listing.blobs)} files"
        f"{here}; the disk has {format_bytes(listing.num_bytes_free)} free"
    )


command.params.extend(passed_options((), [str(one.name) for one in command.params]))
