"""Every command of docs/memory.md's cases does what the line below it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from qserve.cli.plan.train import command
from qserve.core.facts import load
from tests.golden.training import TrainingComparison, compare_training

DOCS = Path(__file__).parents[3] / "docs" / "memory.md"
CASES = re.findall(r"^\$ qserve plan train (.+)\n# [A-E] (fits|does not fit)", DOCS.read_text(), re.MULTILINE)


def test_the_page_has_all_five_cases() -> None:
    assert len(CASES) == 10
    assert set(re.findall(r"^# ([A-E]) ", DOCS.read_text(), re.MULTILINE)) == set("ABCDE")


@pytest.mark.parametrize(("words", "verdict"), CASES)
def test_a_case_comes_out_as_the_page_says(words: str, verdict: str) -> None:
    result = CliRunner().invoke(command, shlex.split(words))
    assert result.exit_code == (0 if verdict == "fits" else 3)
    assert result.stdout.startswith(f" {verdict} ")


def test_the_page_s_figures_are_the_computed_ones() -> None:
    text = DOCS.read_text()
    trusted = [item for item in compare_training() if isinstance(item, TrainingComparison) and not item.untrusted]
    mean = sum(abs(item.error) for item in trusted) / len(trusted)
    worst = max(trusted, key=lambda item: abs(item.error)).error
    assert f"| **{len(trusted)}** | **{mean:.1%}** | **{worst:+.0%}** |".replace("%", " %").replace("-", "−") in text
    rows = load("gpus")["gpus"].values()
    measured = sum(row["total"] == "measured" for row in rows)
    assert f"for {len(rows)} cards, {measured} of them from a line that torch" in text
