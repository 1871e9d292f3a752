"""`qserve env`: environments beside qserve's own, made on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from qserve.cli.options.command import Command, CommandGroup
from qserve.cli.options.json_output import print_json
from qserve.cli.progress import progress_line
from qserve.state_folder import state_folder
from qserve.units import format_bytes

__all__ = ["command", "environments_folder"]

_state_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    envvar="QSERVE_STATE_DIR",
    help="They lie in its folder environments [~/.local/state/qserve].",
)


def environments_folder(state_dir: Path | None) -> Path:
    """Where they are."""
    return state_folder(state_dir) / "environments"


@click.group("env", cls=CommandGroup)
def command() -> None:
    """Environments of tools that want other versions of packages than the engines.

    A command that needs one makes it. Each is a venv with the pinned packages of a requirement file; one whose file has
    changed is made anew when it is needed next. pip's own settings count (PIP_INDEX_URL, PIP_FIND_LINKS, pip.conf).

    \b
    qserve env list
    qserve env make llm-compressor
    qserve env rm llm-compressor
    """


@command.command("list", cls=Command, short_help="Which there are, and what they take on disk.")
@_state_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def list_environments(state_dir: Path | None, as_json: bool) -> None:
    """List the environments that are known or made.

    \b
    qserve env list
    """
    from qserve.environments.making import environments

    rows: list[dict[str, Any]] = []
    for one in environments(environments_folder(state_dir)):
        known = one.requirements
        rows.append(
            {
                "name": one.name,
                "state": one.state(),
                "bytes": one.num_bytes,
                "expected_bytes": 0 if known is None else known.disk_bytes(one.accelerator),
                "purpose": "its requirement file is gone" if known is None else known.purpose,
                "folder": str(one.folder),
            }
        )
    if as_json:
        print_json(rows)
        return
    _print(rows)
    click.echo("qserve env make NAME makes one, qserve env rm NAME removes it", err=True)


@command.command("make", cls=Command, short_help="Make one now, before a command needs it.")
@click.argument("name")
@_state_option
def make(name: str, state_dir: Path | None) -> None:
    """Make the environment NAME, or bring it up to date.

    \b
    qserve env make llm-compressor
    """
    from qserve.environments.making import environment_of, ready

    environment = environment_of(name, environments_folder(state_dir))
    with progress_line() as line:
        line.phase(f"environment {name}")
        was_made = ready(environment, line.tell)
    click.echo(f"{'made' if was_made else 'it is there'}: {environment.folder} ({format_bytes(environment.num_bytes)})")


@command.command("rm", cls=Command, short_help="Remove environments from this machine.")
@click.argument("names", nargs=-1, required=True)
@_state_option
def rm(names: tuple[str, ...], state_dir: Path | None) -> None:
    """Remove environments; a command that needs one makes it again.

    \b
    qserve env rm llm-compressor
    """
    from qserve.environments.making import remove

    for name in names:
        click.echo(f"removed {name}: {format_bytes(remove(name, environments_folder(state_dir)))} are free")


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from qserve.terminal.console import console_of

    table = Table(box=None, pad_edge=False)
    table.add_column("environment", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("disk", justify="right", no_wrap=True)
    table.add_column("for", overflow="fold")
    for row in rows:
        size = f"about {format_bytes(row['expected_bytes'])}" if row["expected_bytes"] else "-"
        table.add_row(row["name"], row["state"], format_bytes(row["bytes"]) if row["bytes"] else size, row["purpose"])
    console_of().print(table)
