"""Every command of docs/cases.md comes out as the line below it says, verdict and figures."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from qserve.cli.plan.train import command

PAGE = (Path(__file__).parents[4] / "docs" / "cases.md").read_text()
CASES = re.findall(r"^\$ qserve plan train (.+)\n# [A-E] (fits|does not fit): (.+)$", PAGE, re.MULTILINE)


def test_every_command_has_its_answer() -> None:
    assert len(CASES) == PAGE.count("$ qserve plan train") == 13
    assert set(re.findall(r"^# ([A-E]) ", PAGE, re.MULTILINE)) == set("ACDE")


@pytest.mark.parametrize(("words", "verdict", "told"), CASES)
def test_a_case_comes_out_as_the_page_says(words: str, verdict: str, told: str) -> None:
    result = CliRunner().invoke(command, shlex.split(words))
    assert result.exit_code == (0 if verdict == "fits" else 3)
    assert result.stdout.startswith(f" {verdict} ")
    for part in told.split("; "):
        assert part in result.stdout
