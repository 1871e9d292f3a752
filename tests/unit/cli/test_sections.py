"""--help of every command: each option in a named section, short sections, and everyday options on the first page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import click
import pytest

from qserve.cli.main import cli
from qserve.cli.options.command import ALL_OPTIONS, Command
from qserve.cli.options.sections import SECTIONS, place_of

MOST_OF_A_SECTION = 15
WIDTH = 78
"""Of a page on a terminal of 80 columns: click leaves two free."""


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if path:
        yield " ".join(path), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from walk(below, (*path, name))


COMMANDS = dict(walk(cli))


def options_of(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


def help_of(path: str, *, shows_all: bool) -> str:
    settings = {**COMMANDS[path].context_settings, "terminal_width": WIDTH}
    context = click.Context(COMMANDS[path], info_name=f"qserve {path}", **settings)
    if shows_all:
        context.meta[ALL_OPTIONS] = True
    return COMMANDS[path].get_help(context)


@pytest.mark.parametrize("path", COMMANDS)
def test_each_option_has_a_section(path: str) -> None:
    command = COMMANDS[path]
    assert isinstance(command, Command), "give it cls=Command"
    known = {name.rpartition(":")[2] for one in SECTIONS for name in (*one.everyday, *one.further)}
    assert not [one.opts for one in options_of(command) if one.name not in known], "add it to options/sections.py"


@pytest.mark.parametrize("path", COMMANDS)
def test_no_section_is_long(path: str) -> None:
    counted = Counter(place_of(str(COMMANDS[path].name), str(one.name)).title for one in options_of(COMMANDS[path]))
    assert not {title: number for title, number in counted.items() if number > MOST_OF_A_SECTION}


@pytest.mark.parametrize("path", COMMANDS)
def test_help_all_shows_every_option_once(path: str) -> None:
    _, options = re.split(r"^[A-Z][\w ]*:$", help_of(path, shows_all=True), maxsplit=1, flags=re.MULTILINE)
    shown = re.findall(r"^  (--?[\w-]+)", options, re.MULTILINE)
    assert not [one.opts for one in options_of(COMMANDS[path]) if shown.count(one.opts[0]) != 1]


@pytest.mark.parametrize("path", [path for path, command in COMMANDS.items() if len(options_of(command)) > 32])
def test_a_long_command_says_how_many_options_it_hides(path: str) -> None:
    page = help_of(path, shows_all=False)
    shown = [one for one in options_of(COMMANDS[path]) if f"\n  {one.opts[0]}" in page]
    hidden = len(options_of(COMMANDS[path])) - len(shown)
    assert len(shown) <= 32
    assert f"{hidden} more options: qserve {path} --help-all" in page


def test_the_table_names_no_option_that_is_gone() -> None:
    names = {str(one.name) for command in COMMANDS.values() for one in options_of(command)}
    listed = {name.rpartition(":")[2] for one in SECTIONS[:-1] for name in (*one.everyday, *one.further)}
    assert listed <= names
    assert all(len(set(place)) == len(place) for one in SECTIONS for place in [(*one.everyday, *one.further)])
