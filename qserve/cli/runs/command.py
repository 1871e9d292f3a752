"""`qserve runs`: list, show, compare and delete recorded runs."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qserve.cli.options.command import CommandGroup
from qserve.cli.options.json_output import print_json
from qserve.cli.options.numbers import Count
from qserve.cli.stores import existing_store, run_store
from qserve.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from qserve.runs import RunStore, StoredRun

__all__ = ["command"]

Function = TypeVar("Function", bound="Callable[..., Any]")
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([hdw])")
_SECONDS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def _shared(function: Function) -> Function:
    function = click.option("--json", "as_json", is_flag=True, help="Print JSON, as GET /v1/qserve/runs answers it.")(
        function
    )
    return click.option(
        "--state-dir",
        type=click.Path(path_type=Path),
        envvar="QSERVE_STATE_DIR",
        help="Where the runs are kept [~/.local/state/qserve].",
    )(function)


@click.group("runs", cls=CommandGroup, invoke_without_command=True)
@click.option("--limit", type=Count(min=1), default=20, show_default=True, help="Newest runs to list.")
@_shared
@click.pass_context
def command(ctx: click.Context, /, limit: int, state_dir: Path | None, as_json: bool) -> None:
    """List recorded runs: each `qserve up` and `qserve train` with its models, requests, errors and end.

    \b
    qserve runs
    qserve runs show                       the newest run, or one by its id
    qserve runs compare 20261120 20261121
    qserve runs delete --older-than 30d
    qserve runs residuals                  measurements that correct the next plan

    Exit status: 0, or 2 if there is no such run.
    """
    if ctx.invoked_subcommand is not None:
        return
    store = existing_store(state_dir)
    if as_json:
        from qserve.runs.document import runs_document

        print_json({"object": "list", "data": []} if store is None else runs_document(store, limit))
        return
    from qserve.cli.runs.show import show_empty, show_list

    if store is None:
        show_empty()
    else:
        show_list(store.runs(limit), store.path)


@command.command("show", short_help="Show one run.")
@click.argument("run", required=False)
@_shared
def show(run: str | None, state_dir: Path | None, as_json: bool) -> None:
    """Show one run: its start, memory planned and measured, requests, faults, results.

    \b
    qserve runs show
    qserve runs show 20261121-2240 --json
    """
    store = run_store(state_dir)
    found = store.run(run)
    if as_json:
        from qserve.runs.document import run_document

        print_json(run_document(store, found))
        return
    from qserve.cli.runs.show import show_run

    show_run(store, found)


@command.command("compare", short_help="Compare two runs.")
@click.argument("first")
@click.argument("second")
@_shared
def compare(first: str, second: str, state_dir: Path | None, as_json: bool) -> None:
    """Compare two runs: different settings, and different results.

    \b
    qserve runs compare 20261120 20261121
    """
    from qserve.cli.runs.compare import compared, show_compared

    store = run_store(state_dir)
    rows = compared(store, store.run(first), store.run(second))
    if as_json:
        print_json([row.to_json() for row in rows])
    else:
        show_compared(rows)


@command.command("delete", short_help="Delete runs with their results and logs.")
@click.argument("runs", nargs=-1)
@click.option("--older-than", metavar="AGE", help="Runs that ended longer ago: 12h, 30d, 8w.")
@_shared
def delete(runs: tuple[str, ...], older_than: str | None, state_dir: Path | None, as_json: bool) -> None:
    """Delete runs: records, results and logs. A running one is refused.

    \b
    qserve runs delete 20261120-0913
    qserve runs delete --older-than 30d
    """
    if bool(runs) == (older_than is not None):
        raise UsageError("name the runs to delete (`qserve runs` lists them), or give --older-than 30d, not both")
    before_s = None if older_than is None else _before_s(older_than)
    store = run_store(state_dir) if runs else existing_store(state_dir)
    chosen = (
        [] if store is None else [store.run(name) for name in runs] if before_s is None else _older(store, before_s)
    )
    gone = () if store is None else store.delete(chosen)
    if as_json:
        print_json({"deleted": list(gone)})
    else:
        click.echo(f"deleted {len(gone)} runs{': ' if gone else ''}{', '.join(gone)}")


@command.command("residuals", short_help="Show what the next plan corrects.")
@_shared
def residuals(state_dir: Path | None, as_json: bool) -> None:
    """Show planned and measured memory of earlier runs. The next plan is corrected by them.

    \b
    qserve runs residuals
    """
    store = existing_store(state_dir)
    found = () if store is None else store.residuals()
    if as_json:
        from dataclasses import asdict

        print_json([asdict(one) for one in found])
        return
    from qserve.cli.runs.show import show_residuals

    show_residuals(found)


def _before_s(age: str) -> float:
    """The time that lies so long ago. Raises UsageError for what is no age."""
    found = _AGE.fullmatch(age.strip())
    if found is None:
        raise UsageError(f"--older-than {age!r} is not an age; write a number and h, d or w: 12h, 30d, 8w")
    return time.time() - float(found[1]) * _SECONDS[found[2]]


def _older(store: RunStore, before_s: float) -> list[StoredRun]:
    return [run for run in store.runs() if run.state != "running" and run.last_seen_unix_s < before_s]
