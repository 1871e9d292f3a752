"""`qserve models`: models that can be planned without a network, and those that are on this machine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qserve.cli.options.command import CommandGroup
from qserve.cli.stores import existing_store
from qserve.core import facts
from qserve.core.dimensions import num_parameters
from qserve.core.model_spec import ModelSpec
from qserve.errors import UsageError
from qserve.hub.bundled import aliases, bundled_config, known_ids
from qserve.hub.names import near_ids
from qserve.hub.resolve import id_of
from qserve.hub.revisions import split_revision
from qserve.planner.memory.kv import kv_bytes_per_token
from qserve.units import format_bytes, format_parameters

if TYPE_CHECKING:
    from qserve.hub.local import LocalModel

__all__ = ["command"]

_REMOVES = "qserve.removes_models"
_WIDE = 100
"""Columns of a terminal in which a column for the quantized siblings has room."""


class _WithRemoval(CommandGroup):
    """`qserve models PART`, and `qserve models rm`, which is no part of a name."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [one for one in super().get_params(ctx) if one.name != "part" or _REMOVES not in ctx.meta]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["rm"]:
            ctx.meta[_REMOVES] = True
            return super().parse_args(ctx, args)
        ctx.allow_interspersed_args, ctx.allow_extra_args = True, False
        return click.Command.parse_args(self, ctx, args)


@click.group("models", cls=_WithRemoval, invoke_without_command=True)
@click.argument("part", default="")
@click.option("--local", is_flag=True, help="Those of the hub that are on this machine: size, and when last used.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.pass_context
def command(ctx: click.Context, /, local: bool, as_json: bool, part: str = "") -> None:
    """List known models, their sizes and short names. PART: only ids that contain it, in upper or lower case.

    \b
    qserve models
    qserve models 32b
    qserve models --local
    qserve models rm Qwen/Qwen3-8B
    """
    if ctx.invoked_subcommand is not None:
        return
    if local:
        _list_local(part, as_json)
    else:
        _list_known(part, as_json)


@command.command("rm", short_help="Delete models of the hub from this machine.")
@click.argument("models", nargs=-1, required=True)
@click.option("--anyway", is_flag=True, help="Delete them although a running service uses them.")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    envvar="QSERVE_STATE_DIR",
    help="Where the runs are kept that tell what is in use [~/.local/state/qserve].",
)
def rm(models: tuple[str, ...], anyway: bool, state_dir: Path | None) -> None:
    """Delete models of the hub from this machine, each with all its revisions or MODEL@REVISION alone.

    A model that a running service uses is refused, and then nothing is deleted.

    \b
    qserve models rm Qwen/Qwen3-8B
    qserve models rm Qwen/Qwen3-8B@v1 qwen3-32b-awq
    """
    from qserve.hub.local import remove

    meant = {model: _meant(model) for model in models}
    if not anyway:
        _check_unused(meant, state_dir)
    for model in models:
        click.echo(f"deleted {model}: {format_bytes(remove(_meant(model)))} are free")


def _meant(model: str) -> list[LocalModel]:
    from qserve.hub.local import named

    name, revision = split_revision(model)
    return named(id_of(name), revision)


def _check_unused(meant: dict[str, list[LocalModel]], state_dir: Path | None) -> None:
    """Raises UsageError for the first that a running service uses."""
    store = existing_store(state_dir)
    if store is None:
        return
    from qserve.runs.in_use import runs_using

    runs = store.runs()
    for model, commits in meant.items():
        using = runs_using(runs, commits[0].id, {one.commit for one in commits})
        if using:
            told = ", ".join(f"{run.id}{f' at {run.url}' if run.url else ''}" for run in using)
            raise UsageError(
                f"{model} is used by what runs here: {told}. Nothing was deleted; stop it first, or add --anyway: it "
                "goes on, and can't load the model again after a restart"
            )


def _list_local(part: str, as_json: bool) -> None:
    from qserve.hub.local import local_models

    found = [one for one in local_models() if part.lower() in one.id.lower()]
    if as_json:
        rows = [{**vars(one), "folder": str(one.folder), "refs": list(one.refs)} for one in found]
        click.echo(json.dumps(rows, indent=2))
        return
    if not found:
        named = f" that has {part!r} in its name" if part else ""
        click.echo(f"No model of the hub{named} is on this machine; qserve pull Qwen/Qwen3-8B fetches one", err=True)
        return
    _print_local(found)
    click.echo("qserve models rm MODEL deletes one; qserve up MODEL serves it", err=True)


def _print_local(found: list[LocalModel]) -> None:
    from rich.table import Table

    from qserve.terminal.console import console_of

    table = Table(box=None, pad_edge=False)
    table.add_column("model", overflow="fold")
    table.add_column("revision", no_wrap=True)
    for name in ("size", "last used"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in found:
        partial = f" + {format_bytes(one.num_bytes_partial)}" if one.num_bytes_partial else ""
        used = time.strftime("%Y-%m-%d", time.localtime(one.used_s))
        refs = f" {', '.join(one.refs)}" if one.refs else ""
        table.add_row(one.id, f"{one.commit[:8]}{refs}", f"{format_bytes(one.num_bytes)}{partial}", used)
    console_of().print(table)


def _list_known(part: str, as_json: bool) -> None:
    wanted = part.lower().replace(":", "-")
    rows = [_row(model_id) for model_id in known_ids() if wanted in model_id.lower()]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        near = near_ids(part, known_ids())
        hint = f"; did you mean {', '.join(near)}?" if near else "; `qserve models` lists all"
        raise UsageError(f"no known model has {part!r} in its name{hint}")
    _print(rows)
    click.echo(f"The organisation can be left out: qserve plan {_short(rows[0]['id'])}", err=True)


def _short(model_id: str) -> str:
    return model_id.rpartition("/")[2].lower()


def _row(model_id: str) -> dict[str, Any]:
    spec = ModelSpec.from_config(bundled_config(model_id) or {}, model_id)
    parameters = num_parameters(spec)
    return {
        "id": model_id,
        "architecture": spec.architecture,
        "parameters": parameters,
        "bf16_bytes": 2 * parameters,
        "kv_bytes_per_token": kv_bytes_per_token(spec, 2),
        "max_position_embeddings": spec.max_position_embeddings,
        "siblings": dict(facts.load("siblings").get(model_id, {})),
        "aliases": [name for name, (target, _) in aliases().items() if target == model_id],
    }


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from qserve.terminal.console import console_of

    console = console_of()
    is_wide = console.width >= _WIDE
    table = Table(box=None, pad_edge=False)
    table.add_column("model", no_wrap=True)  # an id is copied whole: the siblings wrap
    for name in ("size", "bf16", "KV/token"):
        table.add_column(name, justify="right", no_wrap=True)
    if is_wide:
        table.add_column("quantized", min_width=9, overflow="fold")
    for row in rows:
        siblings = " ".join(row["siblings"])
        names = [str(row["id"]), *(f"  = {alias}" for alias in row["aliases"])]
        if siblings and not is_wide:
            names.append(f"  quantized: {siblings}")
        table.add_row(
            "\n".join(names),
            format_parameters(int(str(row["parameters"]))),
            format_bytes(row["bf16_bytes"]),
            format_bytes(row["kv_bytes_per_token"]),
            *([siblings] if is_wide else []),
        )
    console.print(table)
