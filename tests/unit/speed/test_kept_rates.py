"""What was measured of a CPU is kept with its time, and each load is held against the measurement nearest to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qserve.cli.doctor.measured import _MOST_KEPT, keep_rates, kept_rates, rates_at
from qserve.planner.speed.served import ServedRequest
from qserve.planner.speed.terms.cpu import CpuRates

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


def test_a_load_meets_the_measurement_nearest_to_its_middle() -> None:
    early, late = (replace(RATES, at_unix_s=when) for when in (100.0, 200.0))
    load = [ServedRequest(120.0, 10, 10, 1.0, 20.0), ServedRequest(160.0, 10, 10, 1.0, 30.0)]
    assert rates_at(load, [early, late]) is late
    assert rates_at(load[:1], [early, late]) is early
