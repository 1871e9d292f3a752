"""What a decoding step asks of a card does not grow: kernels, waits, and Python by the number of calls."""

from __future__ import annotations

from functools import cache

import pytest

from bench.step_counts import GREEDY, SAMPLED, StepCounts, count_steps
from qserve.engine.transformers.sampling.params import SamplingParams


@cache
def counted(rows: int, params: str) -> StepCounts:
    kinds: dict[str, SamplingParams] = {"greedy": GREEDY, "drawn": SAMPLED}
    return count_steps(rows, kinds[params])


@pytest.mark.parametrize("params", ["greedy", "drawn"])
def test_the_host_waits_for_tokens_alone(params: str) -> None:
    assert counted(8, params).waits <= 1


def test_a_layer_s_kernels() -> None:
    assert counted(8, "greedy").layer_launches <= 12


def test_rows_add_no_kernels_and_little_python() -> None:
    few, many = counted(1, "drawn"), counted(8, "drawn")
    assert many.launches == few.launches <= 200
    assert (many.calls - few.calls) / 7 <= 20
