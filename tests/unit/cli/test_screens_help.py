"""The pages of --help at 80 columns."""

from __future__ import annotations

import click
import pytest

from qserve.cli.main import cli
from tests.golden.screens import WIDTH, check_screen
from tests.unit.cli.test_sections import COMMANDS, help_of
from tests.unit.cli.test_sections import WIDTH as PAGE_WIDTH


@pytest.mark.parametrize("path", ["plan", "up", "run", "chat"])
def test_help_of_a_command(path: str) -> None:
    check_screen(f"{path}-help", help_of(path, shows_all=False))


def test_help_of_qserve() -> None:
    settings = {**cli.context_settings, "terminal_width": PAGE_WIDTH}
    check_screen("qserve-help", cli.get_help(click.Context(cli, info_name="qserve", **settings)))


@pytest.mark.parametrize("path", COMMANDS)
def test_no_page_is_wider_than_a_terminal(path: str) -> None:
    """A line of an example is never wrapped, so it must be short."""
    assert not [line for line in help_of(path, shows_all=True).splitlines() if len(line) > WIDTH]


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_says_what_it_does(path: str) -> None:
    untold = [one.opts for one in COMMANDS[path].params if isinstance(one, click.Option) and not one.help]
    assert not untold
