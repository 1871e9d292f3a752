"""`qserve keys`: API keys with names, and what they have used."""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qserve.cli.options.command import Command, CommandGroup
from qserve.cli.options.numbers import Count, number_option
from qserve.cli.stores import existing_store
from qserve.gateway.keys.entries import PRIORITIES, KeyEntry, read_keys

if TYPE_CHECKING:
    from qserve.runs.key_usage import KeyUsage

__all__ = ["command"]

_DAY_S = 24 * 3600
_FILE = "keys.yaml"

keys_option = click.option(
    "--keys",
    type=click.Path(path_type=Path),
    default=Path(_FILE),
    show_default=True,
    help="The file of keys, as qserve up --keys has it.",
)


@click.group("keys", cls=CommandGroup)
def command() -> None:
    """Give people keys of their own, with models, limits, a priority and a last day.

    A service that runs takes changes within a second.

    \b
    qserve keys add alice --tokens-per-day 2000000
    qserve up --model demo --keys keys.yaml
    qserve keys list
    qserve keys usage --days 7 --csv
    qserve keys rm alice
    """


@command.command("add", cls=Command, short_help="Make a key; it is printed once.")
@click.argument("name")
@keys_option
@click.option("--model", "models", multiple=True, help="A model that it may ask [all]. May be repeated.")
@click.option("--requests-per-minute", type=Count(min=1), help="Requests that it may send a minute.")
@click.option("--tokens-per-minute", type=Count(min=1), help="Tokens of prompts and answers a minute.")
@click.option("--tokens-per-day", type=Count(min=1), help="Tokens of prompts and answers a day, from 00:00 UTC.")
@click.option(
    "--priority",
    type=click.Choice(PRIORITIES),
    default="normal",
    show_default=True,
    help="high: before the others; background: behind them.",
)
@click.option("--expires", type=click.DateTime(["%Y-%m-%d"]), metavar="DATE", help="The last day, as 2027-06-30 (UTC).")
def add(
    name: str,
    keys: Path,
    models: tuple[str, ...],
    requests_per_minute: int | None,
    tokens_per_minute: int | None,
    tokens_per_day: int | None,
    priority: str,
    expires: dt.datetime | None,
) -> None:
    """Make a key for NAME and add what it may do to the file. The key is printed once and kept nowhere.

    \b
    qserve keys add alice
    qserve keys add batch-jobs --priority background --tokens-per-day 5000000
    qserve keys add guest --requests-per-minute 20 --expires 2027-06-30
    """
    from qserve.gateway.keys.editing import add_key, new_key

    key, sha256 = new_key()
    entry = KeyEntry(
        name,
        sha256,
        models or None,
        requests_per_minute,
        tokens_per_minute,
        tokens_per_day,
        priority,
        None if expires is None else expires.date(),
    )
    add_key(keys, entry)
    click.echo(key)
    click.echo(f"This is the key of {name}; it is not shown again. {keys} has what it may do.", err=True)
    click.echo(
        f"Next: qserve up --model MODEL --keys {keys}; a service that has the file takes it within a second", err=True
    )


@command.command("list", cls=Command, short_help="The keys, and what each may do.")
@keys_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def list_keys(keys: Path, as_json: bool) -> None:
    """List the keys of the file, and what each may do.

    \b
    qserve keys list
    """
    entries = read_keys(keys)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(one) for one in entries], indent=2, default=str))
        return
    if not entries:
        click.echo(f"{keys} has no key; qserve keys add NAME makes one", err=True)
        return
    _print(
        ("key", "models", "requests/min", "tokens/min", "tokens/day", "priority", "last day"),
        [
            (
                one.name,
                "all" if one.models is None else ", ".join(one.models),
                *map(_number, (one.requests_per_minute, one.tokens_per_minute, one.tokens_per_day)),
                "expired" if one.has_expired(time.time()) else one.priority,
                "-" if one.expires is None else one.expires.isoformat(),
            )
            for one in entries
        ],
        numeric=(2, 3, 4),
    )


@command.command("rm", cls=Command, short_help="Take keys out of the file.")
@click.argument("names", nargs=-1, required=True)
@keys_option
def rm(names: tuple[str, ...], keys: Path) -> None:
    """Take keys out of the file: their next request is refused, what runs goes on.

    \b
    qserve keys rm alice
    """
    from qserve.gateway.keys.editing import remove_key

    for name in names:
        remove_key(keys, name)
        click.echo(f"removed {name} from {keys}")


@command.command("usage", cls=Command, short_help="Requests and tokens by key, model and day.")
@number_option("--days", Count(min=1, max=3660), 7, "Days back from today (UTC).")
@click.option("--csv", "as_csv", is_flag=True, help="Print a table for other programs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    envvar="QSERVE_STATE_DIR",
    help="Where the runs are kept [~/.local/state/qserve].",
)
def usage(days: int, as_csv: bool, as_json: bool, state_dir: Path | None) -> None:
    """What keys with names have used, by day, key and model, from the record of this machine's runs.

    \b
    qserve keys usage
    qserve keys usage --days 31 --csv
    """
    since_s = _DAY_S * (int(time.time()) // _DAY_S - days + 1)
    store = existing_store(state_dir)
    rows = () if store is None else store.usage(since_s)
    if as_json:
        click.echo(json.dumps([vars(one) for one in rows], indent=2))
    elif as_csv:
        _write_csv(rows)
    elif not rows:
        click.echo(f"no key with a name has sent a request in {days} days; qserve keys add NAME makes one", err=True)
    else:
        _print(
            ("day", "key", "model", "requests", "refused", "prompt", "generated"),
            [
                (
                    one.day,
                    one.key,
                    one.model or "-",
                    *map(_number, (one.num_requests, one.num_refused)),
                    *map(_number, (one.prompt_tokens, one.generated_tokens)),
                )
                for one in rows
            ],
            numeric=(3, 4, 5, 6),
        )


def _write_csv(rows: tuple[KeyUsage, ...]) -> None:
    from qserve.runs.key_usage import KeyUsage

    writer = csv.DictWriter(sys.stdout, [one.name for one in dataclasses.fields(KeyUsage)])
    writer.writeheader()
    writer.writerows(vars(one) for one in rows)


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _print(titles: tuple[str, ...], rows: list[tuple[Any, ...]], numeric: tuple[int, ...]) -> None:
    from rich.table import Table

    from qserve.terminal.console import console_of

    table = Table(box=None, pad_edge=False)
    for index, title in enumerate(titles):
        table.add_column(title, justify="right" if index in numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console_of().print(table)
