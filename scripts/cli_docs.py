"""docs/cli.md, written from the commands' own --help.

python scripts/cli_docs.py             write it
python scripts/cli_docs.py --check     exit status 1 if it is not what --help says
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from qserve.cli.main import cli

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
WIDTH = 100
HEAD = """# The commands

Written by `make docs` from the commands' own `--help`; `make check` fails when the two differ. Do not edit.
"""


def page() -> str:
    """The whole of docs/cli.md."""
    parts = [HEAD]
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
            if below is not None:
                yield from walk(below, (*path, name))


def help_of(command: click.Command, path: tuple[str, ...]) -> str:
    """What --help prints, on a terminal of `WIDTH` columns."""
    settings = {**command.context_settings, **cli.context_settings, "terminal_width": WIDTH}
    with click.Context(command, info_name=" ".join(path), **settings) as context:
        return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())


def main() -> None:
    """Write the page, or hold it to what --help says."""
    wanted = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted)
        return
    found = PAGE.read_text() if PAGE.exists() else ""
    if found != wanted:
        difference = difflib.unified_diff(found.splitlines(), wanted.splitlines(), "docs/cli.md", "--help", lineterm="")
        print("\n".join(difference))
        sys.exit("docs/cli.md is not what --help says; write it anew: make docs")


if __name__ == "__main__":
    main()
