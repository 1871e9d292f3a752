"""Planned speed on published figures: each bound is above what docs/speed.md states for all rows."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from qserve.core.schemes import SCHEMES
from qserve.planner.speed.bands import INSIDE_PERCENT, band_of
from qserve.planner.speed.figures import percentile
from qserve.ui.strings.memory import STRINGS
from scripts.accuracy_speed import Row, bands, covered, folds, kept_band, unseen_band
from scripts.judge_speed_rows import reasons
from tests.golden.speed import ROWS, Comparison, cases, compare, scheme_of

_EVERY = 7
"""A seventh of the runs: all of them take half a minute."""


@cache
def compared() -> tuple[Comparison, ...]:
    return tuple(compare(list(cases())[::_EVERY]))


@cache
def left_out() -> tuple[Row, ...]:
    return tuple(folds())


@cache
def medians() -> dict[str, float]:
    errors = defaultdict(list)
    for one in compared():
        errors[one.kind].append(abs(one.error))
    return {kind: percentile(sorted(values), 0.5) for kind, values in errors.items()}


@pytest.mark.parametrize(("kind", "limit"), [("throughput", 0.09), ("tpot", 0.12), ("ttft above", 0.28)])
def test_the_median_error_stays_where_the_page_says(kind: str, limit: float) -> None:
    assert medians()[kind] <= limit


def test_three_quarters_of_the_times_per_token_are_within_a_quarter() -> None:
    errors = [abs(one.error) for one in compared() if one.kind == "tpot"]
    assert len(errors) > 80
    assert sum(error <= 0.25 for error in errors) >= 0.75 * len(errors)


def test_bands_hold_the_rows_of_cards_with_releases_that_were_left_out() -> None:
    """Folds of whole (card, release) groups, and each group's band made without it; `make accuracy` prints both."""
    rows = left_out()
    assert len(rows) == sum(len(one.rows) for one in cases())
    assert len({row.group for row in rows}) > 40
    unseen = unseen_band(rows)
    for some in (rows, [row for row in rows if row.kind == "tpot"], [row for row in rows if row.is_borrowed]):
        assert 0.85 <= covered(some, unseen) <= 0.95
        assert 0.85 <= covered(some, kept_band) <= 0.95


def test_the_table_has_the_bands_that_the_folds_make() -> None:
    made = bands(left_out())
    for (engine, metric), band in made.of.items():
        kept = band_of(metric, engine, is_borrowed=False)
        assert (kept.low, kept.high) == (pytest.approx(band.low, abs=0.006), pytest.approx(band.high, abs=0.006))
    borrowed = band_of("tpot", "other", is_borrowed=True)
    assert borrowed.high / band_of("tpot", "other", is_borrowed=False).high == pytest.approx(made.borrowed)


def test_what_is_said_of_the_bands_is_what_they_hold() -> None:
    assert 100 * covered(left_out(), kept_band) == pytest.approx(INSIDE_PERCENT, abs=5)
    screen = (Path(__file__).parent / "screens/report-running.txt").read_text(encoding="utf-8")
    for text in (*STRINGS["memory.planned_band"], screen):
        assert re.search(r"(\d+) % (?:band|区间)", text)[1] == str(INSIDE_PERCENT)  # type: ignore[index]


def test_every_row_is_judged_or_says_why_not() -> None:
    with ROWS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["not_judged"] for row in rows] == list(reasons(rows)), "scripts/judge_speed_rows.py --write"
    judged = {row_id for one in cases() for row_id, _, _ in one.rows}
    assert len(judged) > 2350
    assert judged <= {row["id"] for row in rows if not row["not_judged"]}


def test_every_run_that_is_planned_has_a_scheme_and_no_judged_row_is_left_out_for_its_own() -> None:
    """A scheme without a row would end scripts/accuracy_speed.py."""
    with ROWS.open(newline="") as file:
        judged = [row for row in csv.DictReader(file) if not row["not_judged"]]
    assert {scheme_of(row) for row in judged} <= SCHEMES.keys()
    assert {case.quant for case in cases(every=True)} <= SCHEMES.keys()
