"""Planned speed on published figures: each bound is above what docs/speed.md states for all rows."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import pytest

from qserve.planner.speed.figures import percentile
from tests.golden.speed import ROWS, Comparison, cases, compare

_EVERY = 7
"""A seventh of the runs: all of them take half a minute."""


@cache
def compared() -> tuple[Comparison, ...]:
    return tuple(compare(list(cases())[::_EVERY]))


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


def test_every_row_is_judged_or_says_why_not() -> None:
    judged = {row_id for one in cases() for row_id, _, _ in one.rows}
    with ROWS.open() as file:
        header = file.readline()
    assert header.rstrip().endswith("not_judged")
    assert len(judged) > 2400
