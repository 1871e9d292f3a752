"""The probe of a CPU, run for real: quantities that plans can be made with."""

from __future__ import annotations

import torch

from qserve.engine.cpu_rates import CpuProbe
from qserve.model.cpu.build import library
from qserve.planner.speed.terms.cpu import CpuRates


def test_what_is_measured_can_be_planned_with() -> None:
    threads = torch.get_num_threads()
    told = CpuRates.from_json(CpuProbe().all_rates(seconds=0.0))
    assert torch.get_num_threads() == threads, "the caller's setting stays"
    for rates in (told, *([told.fewer] if told.fewer else [])):
        assert rates.read_bytes_per_s > 1e8
        assert rates.gemm_flop_per_s > 1e9
        assert [rows for rows, _ in rates.linear_ps] == [1, 4, 16, 64, 256]
    assert told.cores == threads
    assert {name for name, _ in told.coded_ps} == ({"int8", "4bit"} if library() is not None else set())
    assert (told.fewer is None) == (threads == 1)
