"""A download as a bar: as wide as the terminal, and full only at its end."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, Group

from qserve.hub.growth import Arrived
from qserve.terminal.progress_bar import bar_of
from qserve.units import GIB

FULL, END = "━", "╸"
PACE = "98.4 MiB/s · 2.8 min left"


def lines_of(arrived: Arrived, width: int) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    console.print(Group(bar_of("fetching it", arrived, width)))
    return out.getvalue().splitlines()


@pytest.mark.parametrize(("width", "columns"), [(100, 40), (70, 13), (40, 10)])
def test_a_bar_takes_what_the_words_leave(width: int, columns: int) -> None:
    name, line = lines_of(Arrived(6 * GIB, 18 * GIB, PACE), width)
    assert name == "fetching it" and len(line) <= width
    bar, _, told = line.partition(" ")
    assert len(bar) == columns
    assert bar.index(END) == columns // 3 and " 33 % · 6.00 GiB" in line
    if width >= 70:
        assert told == f"33 % · 6.00 GiB of 18.00 GiB · {PACE}"


def test_a_bar_is_full_when_all_is_there() -> None:
    _, line = lines_of(Arrived(18 * GIB, 18 * GIB, "verifying"), 70)
    assert line.startswith(FULL * 26) and END not in line and "100 % · 18.00 GiB of 18.00 GiB · verifying" in line
    _, line = lines_of(Arrived(18 * GIB - 1, 18 * GIB, ""), 70)
    assert END in line and " 99 % · " in line
    _, line = lines_of(Arrived(0, 18 * GIB, ""), 70)
    assert line.startswith(END) and "  0 % · 0 B of 18.00 GiB" in line
