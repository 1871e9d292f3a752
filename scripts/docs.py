"""What the documentation quotes from the program: docs/cli.md, outputs of commands on every page, counted calls.

    python scripts/docs.py             write them anew
    python scripts/docs.py --check     exit status 1 if they are not what the program prints

A console block in README.md that begins with "$ qserve plan …" holds what that command prints. So does, on every page,
a text block below <!-- qserve … --> or <!-- python scripts/… -->. The first two columns of a table below
"python scripts/walks.py plan …" are what that counts of the file in the third.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from qserve.cli.main import cli
from qserve.cli.options.command import ALL_OPTIONS

ROOT = Path(__file__).parent.parent
WIDTH = 100
CLI_HEAD = """# The commands

Written by `make docs` from the commands' own `--help-all`; `make check` fails when the two differ. Do not edit.
"""
WALK = re.compile(r"^python (scripts/walks\.py) (plan .*)$", re.MULTILINE)
COUNTED_ROW = re.compile(r"^\| \d+ \| \d+ \| `(.*?)` \|", re.MULTILINE)
CONSOLE_BLOCK = re.compile(r"(```console\n\$ (qserve plan .*)\n)((?:.*\n)*?)```\n")
MARKED_BLOCK = re.compile(r"(<!-- ((?:qserve|python scripts/).*) -->\n```text\n)((?:.*\n)*?)```\n")


def cli_page() -> str:
    """The whole of docs/cli.md."""
    parts = [CLI_HEAD]
    for path, command in walk(cli, ("qserve",)):
        parts.append(f"## {' '.join(path)}\n\n```text\n{help_of(command, path)}\n```\n")
    return "\n".join(parts)


def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A command and everything below it, in the order of --help."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path[-1])
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and below.name == name:  # `serve` is another name of `up`
                yield from walk(below, (*path, name))


def help_of(command: click.Command, path: tuple[str, ...]) -> str:
    """What --help-all prints, on a terminal of `WIDTH` columns."""
    settings = {**command.context_settings, **cli.context_settings, "terminal_width": WIDTH}
    with click.Context(command, info_name=" ".join(path), **settings) as context:
        context.meta[ALL_OPTIONS] = True
        return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())


def quoted(text: str, block: re.Pattern[str] = MARKED_BLOCK) -> str:
    """A page with the outputs that its blocks quote as the commands print them now."""
    return block.sub(lambda found: f"{found[1]}{output_of(found[2])}\n```\n", text)


def output_of(command: str) -> str:
    """What a command prints."""
    program, *arguments = shlex.split(command)
    done = _run([str(Path(sys.executable).with_name(program)), *arguments])
    if done.stderr:
        sys.exit(f"{command}\n{done.stderr}")
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


def counted(text: str) -> str:
    """docs/architecture/tree.md with the visits and callers of its table as they are now."""
    script, arguments = WALK.findall(text)[0]
    done = _run([sys.executable, str(ROOT / script), "--json", *shlex.split(arguments)])
    if done.returncode:
        sys.exit(f"{script} {arguments}\n{done.stderr}")
    rows = {row["file"]: row for row in json.loads(done.stdout)["rows"]}
    if gone := [file for file in COUNTED_ROW.findall(text) if file not in rows]:
        sys.exit(f"docs/architecture/tree.md tells of files that the plan does not come through: {', '.join(gone)}")
    return COUNTED_ROW.sub(lambda row: f"| {rows[row[1]]['visits']} | {rows[row[1]]['callers']} | `{row[1]}` |", text)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """A command where no model is cached, no hub can be asked and nothing was measured: the same on every machine."""
    with tempfile.TemporaryDirectory() as nothing:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("QSERVE_", "HF_"))}
        empty = {"HF_HUB_OFFLINE": "1", "HF_HOME": nothing, "QSERVE_STATE_DIR": nothing}
        environment = {**own, **empty, "COLUMNS": str(WIDTH), "TERM": "dumb"}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def main() -> None:
    """Write the pages, or hold them to what the program prints."""
    readme, tree = ROOT / "README.md", ROOT / "docs" / "architecture" / "tree.md"
    pages = {path: quoted(path.read_text()) for path in [readme, *sorted(ROOT.glob("docs/**/*.md"))]}
    pages[readme] = quoted(pages[readme], CONSOLE_BLOCK)
    pages[tree] = counted(pages[tree])
    pages[ROOT / "docs" / "cli.md"] = cli_page()
    stale = False
    for path, wanted in pages.items():
        found = path.read_text() if path.exists() else ""
        if "--check" not in sys.argv[1:]:
            path.write_text(wanted)
        elif found != wanted:
            stale = True
            name = str(path.relative_to(ROOT))
            print("\n".join(difflib.unified_diff(found.splitlines(), wanted.splitlines(), name, "now", lineterm="")))
    if stale:
        sys.exit("the documentation quotes what the program no longer prints; write it anew: make docs")


if __name__ == "__main__":
    main()
