"""Every command of docs/memory.md's cases does what the line below it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from qserve.cli.plan.train import command

DOCS = Path(__file__).parents[4] / "docs" / "memory.md"
CASES = re.findall(r"^\$ qserve plan train (.+)\n# [A-E] (fits|does not fit)", DOCS.read_text(), re.MULTILINE)


def test_the_page_has_all_five_cases() -> None:
    assert len(CASES) == 10
    assert set(re.findall(r"^# ([A-E]) ", DOCS.read_text(), re.MULTILINE)) == set("ABCDE")


@pytest.mark.parametrize(("words", "verdict"), CASES)
def test_a_case_comes_out_as_the_page_says(words: str, verdict: str) -> None:
    result = CliRunner().invoke(command, shlex.split(words))
    assert result.exit_code == (0 if verdict == "fits" else 3)
    assert result.stdout.startswith(f" {verdict} ")
