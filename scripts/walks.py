"""How often a plan, a request or a parameter goes from file to file; to be measured before and after a change.

    python scripts/walks.py plan --model Qwen/Qwen3-8B --gpu rtx-4090 --quant bf16 --engine vllm
    python scripts/walks.py chat --stream
    python scripts/walks.py follow qserve/service/plan.py:plan_service:request
    python scripts/walks.py values
    python scripts/walks.py --json plan --model Qwen/Qwen3-8B

plan and chat run it, and count the calls of a run after the first: files, functions, calls, and switches, which are
calls that enter another file than the call before. follow reads the source alone, by the rules of
scripts/walking/followed.py, and counts rooms (files), stays (files entered, each time), returns (stays in a file that
it had been in before) and climbs (into a higher layer). values counts what is read of untyped `values["..."]` below
qserve/cli.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import click  # noqa: E402 - found from the path above

from qserve.errors import QserveError  # noqa: E402
from scripts.walking import values  # noqa: E402
from scripts.walking.followed import follow  # noqa: E402
from scripts.walking.sources import Sources  # noqa: E402
from scripts.walking.traced import Trace, traced  # noqa: E402

PACKAGE = ROOT / "qserve"
_MOST_ROWS = 10


@dataclass(frozen=True)
class Report:
    """A table, of which the last column names a file, and what it comes to."""

    columns: tuple[str, ...]
    rows: list[tuple[int | str, ...]]
    totals: dict[str, int]

    def __str__(self) -> str:
        widths = [max(map(len, map(str, column))) for column in zip(self.columns, *self.rows, strict=True)]
        lines = (
            "  ".join((*(f"{cell:>{width}}" for cell, width in zip(row[:-1], widths, strict=False)), str(row[-1])))
            for row in (self.columns, *self.rows)
        )
        return "\n".join((*lines, "", ", ".join(f"{count} {name}" for name, count in self.totals.items())))

    def to_json(self) -> str:
        """{"rows": [{column: cell}], "totals": {name: count}}."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return json.dumps({"rows": rows, "totals": self.totals}, indent=2)


def plan(arguments: list[str]) -> Report:
    """Of `qserve plan` with these arguments. Visits: calls from another file. Callers: functions of other files.

    Files that call no other are leaves (sizes, versions, formulas), which a reader looks up; they are not in the table.
    A search visits a file again for each candidate that it tries: one who reads the source comes by once a caller.
    """
    from qserve.cli.main import cli

    trace, status = Trace(PACKAGE), 0
    for counted in (contextlib.nullcontext(), traced(trace)):
        with contextlib.redirect_stdout(io.StringIO()), counted:
            try:
                cli.main(["plan", *arguments], standalone_mode=False)
            except SystemExit as left:  # 3: it does not fit
                status = int(left.code or 0)
    rows: list[tuple[int | str, ...]] = [(trace.visits[one], len(trace.callers[one]), one) for one in trace.story]
    leaves = len(trace.visits) - len(trace.story)
    return Report(("visits", "callers", "file"), rows, {**trace.totals, "leaves": leaves, "as exit status": status})


def chat(streamed: bool) -> Report:
    """Of one POST /v1/chat/completions in the gateway's process. Entered: switches into a file."""
    from scripts.walking.chat import walk_of_chat

    trace = asyncio.run(walk_of_chat(PACKAGE, streamed))
    rows: list[tuple[int | str, ...]] = [(count, file) for file, count in trace.entered.most_common(_MOST_ROWS)]
    return Report(("entered", "file"), rows, trace.totals)


def followed(place: str) -> Report:
    """Of FILE:FUNCTION:PARAMETER. Raises LookupError where there is no such parameter."""
    if place.count(":") != 2:
        raise LookupError(f"{place}: name a file, a function and its parameter, as in {_EXAMPLE}")
    walk = follow(Sources(PACKAGE), *place.split(":"))
    totals = {"rooms": walk.rooms, "stays": len(walk.stays), "returns": walk.returns, "climbs": walk.climbs(layers())}
    rows: list[tuple[int | str, ...]] = [(count, file) for file, count in Counter(walk.stays).most_common(_MOST_ROWS)]
    return Report(("stays", "file"), rows, totals)


_EXAMPLE = "qserve/service/plan.py:plan_service:request"


def layers() -> list[list[str]]:
    """The packages of each layer, from the top to the bottom, as import-linter holds them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    names = next(one["layers"] for one in contracts if one["type"] == "layers")
    return [[package.strip() for package in layer.split("|")] for layer in names]


def read_values() -> Report:
    """Of the files of qserve/cli that read `values`, and those that import the most modules of qserve."""
    files = values.files_of(PACKAGE / "cli")
    reads = {file: values.values_read(tree) for file, tree in files.items()}
    imports = {file: values.modules_imported(tree, "qserve") for file, tree in files.items()}
    most = [file for file, _ in Counter(imports).most_common(_MOST_ROWS)]
    shown = sorted({*most, *(file for file, count in reads.items() if count)}, key=lambda one: (-reads[one], one))
    rows: list[tuple[int | str, ...]] = [(reads[one], imports[one], one) for one in shown]
    totals = {"values read": sum(reads.values()), "files that read them": sum(map(bool, reads.values()))}
    return Report(("values", "imports", "file"), rows, totals)


def _read_arguments(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="the table and its totals as one JSON object")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("plan", help="while one plan is made; takes the arguments of qserve plan", add_help=False)
    of_chat = commands.add_parser("chat", help="while the gateway answers one chat request")
    of_chat.add_argument("--stream", action="store_true", help="the answer as a stream of events")
    of_follow = commands.add_parser("follow", help="where a parameter is passed on, by the source alone")
    of_follow.add_argument("place", metavar="FILE:FUNCTION:PARAMETER", help=_EXAMPLE)
    commands.add_parser("values", help='where values["..."] is read below qserve/cli')
    read, rest = parser.parse_known_args(arguments)
    if rest and read.command != "plan":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return read, rest


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the report of a command."""
    read, rest = _read_arguments(arguments)
    try:
        if read.command == "plan":
            report = plan(rest)
        elif read.command == "chat":
            report = chat(read.stream)
        elif read.command == "follow":
            report = followed(read.place)
        else:
            report = read_values()
    except (LookupError, QserveError) as error:
        sys.exit(str(error.args[0]))
    except click.ClickException as error:
        sys.exit(error.format_message())
    print(report.to_json() if read.json else report)


if __name__ == "__main__":
    main()
