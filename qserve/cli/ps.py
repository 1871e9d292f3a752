"""`qserve ps`: the models of a running service, and whether they are in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from qserve.cli.options.command import Command
from qserve.cli.options.running import asked, server_options

__all__ = ["STATES", "command"]

STATES = {"ready": "in memory", "idle": "not loaded", "starting": "loading", "unloading": "leaving"}


@click.command("ps", cls=Command)
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def command(url: str | None, api_key: str, state_dir: Path | None, as_json: bool) -> None:
    """List the models of a running service: which are in memory, what they take, who waits.

    \b
    qserve ps
    qserve ps --url http://gpu-box:8000 --json
    """
    rows = asked(url, state_dir, api_key, "GET", "/v1/qserve/models")["data"]
    if as_json:
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    _print(rows)
    if any("num_loads" in row for row in rows):
        click.echo("qserve stop MODEL takes one out of memory; the next request for it loads it", err=True)


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from qserve.terminal.console import console_of
    from qserve.units import format_bytes, format_seconds

    table = Table(box=None, pad_edge=False)
    table.add_column("model", overflow="fold")
    table.add_column("state", no_wrap=True)
    for name in ("planned", "requests", "idle", "load", "loads"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        state = STATES.get(row["state"], row["state"])
        state += " · pinned" if row["is_pinned"] and "num_loads" in row else ""
        told = [
            format_bytes(row["planned_bytes"], 1) if row.get("planned_bytes") else "",
            str(row["num_requests"]),
            *(format_seconds(row[name]) if row.get(name) is not None else "" for name in ("idle_s", "load_s")),
            str(row.get("num_loads", "")),
        ]
        table.add_row(row["models"][0], state, *told)
        if row["state"] == "failed":
            table.add_row(f"  {row['detail']}")
    console_of().print(table)
