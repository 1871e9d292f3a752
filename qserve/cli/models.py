"""`qserve models`: models that can be planned without a network, with sizes and quantized siblings."""

from __future__ import annotations

import json
from typing import Any

import click

from qserve.cli.options.command import Command
from qserve.core import facts
from qserve.core.dimensions import num_parameters
from qserve.core.model_spec import ModelSpec
from qserve.errors import UsageError
from qserve.hub.bundled import aliases, bundled_config, known_ids
from qserve.hub.names import near_ids
from qserve.planner.memory.kv import kv_bytes_per_token
from qserve.units import format_bytes, format_parameters

__all__ = ["command"]

_WIDE = 100
"""Columns of a terminal in which a column for the quantized siblings has room."""


@click.command("models", cls=Command)
@click.argument("part", default="")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def command(part: str, as_json: bool) -> None:
    """List known models, their sizes and short names. PART: only ids that contain it, in upper or lower case.

    \b
    qserve models
    qserve models 32b
    """
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
