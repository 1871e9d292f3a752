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


@pytest.mark.parametrize(("rows", "params"), [(8, "greedy"), (1, "drawn"), (64, "drawn")])
def test_the_host_waits_for_tokens_alone(rows: int, params: str) -> None:
    assert counted(rows, params).waits <= 1


def test_a_layer_s_kernels() -> None:
    assert counted(8, "greedy").layer_launches <= 12 >= counted(64, "drawn").layer_launches


def test_rows_add_no_kernels_and_little_python() -> None:
    """Thirteen calls a row are a third of a millisecond at 64 rows (`bench/count_step.py`)."""
    few, many = counted(1, "drawn"), counted(64, "drawn")
    assert many.launches == few.launches <= 200
    assert few.calls <= 120 and (many.calls - few.calls) / 63 <= 13
