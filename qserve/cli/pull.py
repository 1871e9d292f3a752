"""`qserve pull`: fetch what a plan loads from the hub, before it is served."""

from __future__ import annotations

import json
from dataclasses import dataclass
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
from qserve.service.machine import Machine
from qserve.service.next_command import OF_PLAN_ALONE, command_of
from qserve.service.plan import ServicePlan, plan_service
from qserve.service.request import ServiceRequest
from qserve.units import format_bytes

if TYPE_CHECKING:
    from qserve.hub.download import Listing

__all__ = ["command"]

_OWN = ("--anyway", "--no-plan", "--state-dir")
_SHORT_COMMIT = 8
_EXAMPLE = "qserve pull Qwen/Qwen3-8B"


@click.command("pull", cls=Command)
@config_option
@model_options()
@plan_options
@click.option("--anyway", is_flag=True, help="Fetch it although it does not fit on this machine.")
@click.option("--no-plan", is_flag=True, help="Fetch MODEL itself, whatever it is: an adapter, for example.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@measurements_option
@click.pass_context
def command(ctx: click.Context, /, gpu: str | None, anyway: bool, no_plan: bool, as_json: bool, **values: Any) -> None:
    """Fetch models from the hub: what their plan loads, resumed where it broke off, and verified.

    Plans first, as `qserve plan`, and takes every option of `qserve up` in addition to its own: which checkpoint is
    loaded (a quantized sibling, where one is better), whether it fits, and whether the disk has room. HF_ENDPOINT names
    a mirror, HF_HOME the folder of models. Exit status: 0 it is there, 3 does not fit, 2 bad input or no such model.

    \b
    qserve pull Qwen/Qwen3-8B
    qserve pull Qwen/Qwen3-32B --quant 4bit --gpu rtx-4090
    qserve pull Qwen/Qwen3-8B --reward my-org/my-reward-model
    qserve pull --config qwen3-32b-1x24gb
    qserve pull Qwen/Qwen3-8B --embed Qwen/Qwen3-Embedding-0.6B
    qserve pull my-org/my-adapter --no-plan
    """
    if no_plan:
        found = [_named(values)]
    else:
        service = _planned(values, gpu, anyway=anyway, is_told=not as_json)
        found = [*_chat(service), *_reward(service)]
    if as_json:
        click.echo(json.dumps(_document(found), indent=2))
        return
    for one in found:
        click.echo(f"{'Fetched and verified' if one.num_bytes else 'It is there'}: {one.folder}")
    if not no_plan:
        flags = {flag: value for flag, value in given_flags(ctx).items() if flag not in (*OF_PLAN_ALONE, *_OWN)}
        click.echo(f"Serve it: {command_of('up', flags)}")


@dataclass(frozen=True)
class _Found:
    """A model that is on this machine, and how many bytes had to come for it. `role`: model, reward, embed or base."""

    role: str
    name: str
    folder: Path
    num_bytes: int = 0


def _document(found: list[_Found]) -> dict[str, Any]:
    """The first one; the others under their roles."""
    first, *others = [
        {
            "id": split_revision(one.name)[0],
            "revision": commit_of(one.folder),
            "folder": str(one.folder),
            "fetched_bytes": one.num_bytes,
        }
        for one in found
    ]
    return {**first, **{one.role: row for one, row in zip(found[1:], others, strict=True)}}


def _planned(values: dict[str, Any], gpu: str | None, *, anyway: bool, is_told: bool) -> ServicePlan:
    """Tells whether it fits. Raises DoesNotFit with what would, unless it is fetched `anyway`."""
    from qserve.terminal.plan import show_headline

    if all(values[name] is None for name in ("model", "reward", "embed")):
        needed_model(None, _EXAMPLE)
    check_roles(values)
    machine = Machine.named(gpu)
    service = plan_service(ServiceRequest.from_flags(values), machine, knowledge_of(values, machine))
    if is_told:
        for one in service.models:
            show_headline(one.whole)
    if not anyway:
        try:
            service.check_fits()
        except DoesNotFit as error:
            raise DoesNotFit(f"{error}\nNothing was fetched; --anyway fetches it all the same") from None
    return service


def _named(values: dict[str, Any]) -> _Found:
    """MODEL as it is. Raises UsageError for a reward model beside it, which nothing would fetch."""
    model = needed_model(values["model"], _EXAMPLE)
    if beside := [name for name in ("reward", "embed") if values[name] is not None]:
        raise UsageError(
            f"--no-plan fetches MODEL alone; leave --{beside[0]} out, and fetch it by a command of its own"
        )
    return _fetched("model", model)


def _chat(service: ServicePlan) -> list[_Found]:
    if service.chat is None:
        return []
    asked, checkpoint, loaded = service.request.model, service.chat.checkpoint.id, service.chat.whole.quant.checkpoint
    named = str(asked) if loaded == checkpoint else loaded
    folder = resolve(named).folder
    return [_Found("model", named, folder) if folder is not None else _fetched("model", named)]


def _reward(service: ServicePlan) -> list[_Found]:
    """The reward model, and the base of its adapter, or the embedding model. Raises UsageError for one that can't be
    told to be one.
    """
    if (model := service.reward_model) is None or not model.computes:
        return []
    if (trained := model.trained) is None:
        raise UsageError(
            f"{model.planned.id} is not known as a trained reward model, and was planned as if it had a head; to fetch "
            f"it as it is: qserve pull {model.planned.id} --no-plan"
        )
    roles = zip((service.role, "base"), trained.to_fetch, strict=False)
    return [_fetched(*one) for one in roles] or [_Found(service.role, trained.id, trained.path)]


def _fetched(role: str, model: str) -> _Found:
    name, revision = split_revision(model)
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
        return _Found(role, model, fetch(name, revision, line.arrived), missing)


def _told(listing: Listing) -> str:
    num_bytes, missing = listing.num_bytes, listing.num_bytes_missing
    here = f", {format_bytes(num_bytes - missing)} of it here" if missing < num_bytes else ""
    return (
        f"{listing.name} at {listing.commit[:_SHORT_COMMIT]}: {format_bytes(num_bytes)} in {len(listing.blobs)} files"
        f"{here}; the disk has {format_bytes(listing.num_bytes_free)} free"
    )


command.params.extend(passed_options((), [str(one.name) for one in command.params]))
