"""What was measured of a CPU is kept with its time, and each load is held against the measurement nearest to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qserve.planner.speed.served import ServedRequest
from qserve.planner.speed.terms.cpu import CpuRates
from qserve.planner.speed.terms.cpu_middle import middle_of
from qserve.service.measured_speed import _MOST_KEPT, keep_rates, kept_rates, rates_at, rates_near

RATES = CpuRates(40e9, 800e9, 2, linear_ps=((1, 80.0), (256, 800.0)), at_unix_s=100.0)


def test_measurements_are_kept_in_order_and_the_oldest_go(tmp_path: Path) -> None:
    assert kept_rates(tmp_path / "new") == []
    many = [replace(RATES, at_unix_s=float(when)) for when in range(_MOST_KEPT + 3)]
    for one in many:
        keep_rates(tmp_path / "new", one)
    assert kept_rates(tmp_path / "new") == many[3:]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"cores": 2}]', '{"read_bytes_per_s": 1.0, "cores": 2}'])
def test_a_file_that_is_none_of_ours_counts_as_unmeasured(tmp_path: Path, text: str) -> None:
    (tmp_path / "cpu_rates.json").write_text(text)
    assert kept_rates(tmp_path) == []


def test_a_load_meets_what_was_measured_nearest_to_its_middle() -> None:
    early, late = (replace(RATES, at_unix_s=when) for when in (1000.0, 3000.0))
    load = [ServedRequest(1900.0, 10, 10, 1.0, 20.0), ServedRequest(2300.0, 10, 10, 1.0, 30.0)]
    assert rates_at(load, [early, late]) is late
    assert rates_at(load[:1], [early, late]) is early


def test_measurements_of_the_same_minutes_count_as_their_middle() -> None:
    """A probe of milliseconds meets more than the machine does: one that others disturbed is outvoted."""
    slow = {0: 1.0, 60: 3.0, 120: 1.2, 3000: 9.0}
    rates = [
        replace(
            RATES,
            at_unix_s=when,
            read_bytes_per_s=40e9 / by,
            linear_ps=((1, 80.0 * by), (256, 800.0 * by)),
            fewer=replace(RATES, cores=1, linear_ps=((1, 90.0 * by),)),
        )
        for when, by in slow.items()
    ]
    found = rates_near(60.0, rates)
    assert found.linear_ps == ((1, 96.0), (256, 960.0))
    assert found.read_bytes_per_s == pytest.approx(40e9 / 1.2)
    assert found.fewer is not None
    assert found.fewer.linear_ps == ((1, 108.0),)
    assert rates_near(2900.0, rates) is rates[-1]


def test_a_measurement_of_other_products_is_left_out_of_the_middle() -> None:
    """An older release timed fewer numbers of rows."""
    older = replace(RATES, linear_ps=((1, 500.0),))
    assert middle_of([older, older, RATES]) == RATES
