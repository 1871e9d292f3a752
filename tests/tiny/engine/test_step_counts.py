"""What a decoding step asks of a card does not grow: kernels, waits, and Python by the number of calls."""

from __future__ import annotations

from functools import cache

import pytest

from bench.step_counts import GREEDY, SAMPLED, StepCounts, count_steps
from qserve.engines.transformers.worker.sampling.params import SamplingParams


@cache
def counted(rows: int, params: str, held: str = "bf16") -> StepCounts:
    kinds: dict[str, SamplingParams] = {"greedy": GREEDY, "drawn": SAMPLED}
    return count_steps(rows, kinds[params], held)


@pytest.mark.parametrize(("rows", "params"), [(8, "greedy"), (1, "drawn"), (64, "drawn")])
def test_the_host_waits_for_tokens_alone(rows: int, params: str) -> None:
    assert counted(rows, params).waits <= 1


def test_a_layer_s_kernels() -> None:
    """A norm, q with k and v, rotation, attention by parts, the parts together, o; a norm, gate with up, silu, down."""
    assert counted(8, "greedy").layer_launches <= 10 >= counted(64, "drawn").layer_launches


@pytest.mark.parametrize("held", ["int8", "nf4", "fp4"])
def test_what_bitsandbytes_holds_asks_for_no_more(held: str) -> None:
    """One kernel a product, and no question for outliers."""
    step = counted(8, "greedy", held)
    assert step.waits <= 1 and step.layer_launches <= 10


@pytest.mark.parametrize("params", ["greedy", "drawn"])
def test_rows_add_no_kernels_and_little_python(params: str) -> None:
    """Four or five calls a row, the step of a generator counted as one, at 8 rows and 64 (`bench/count_step.py`)."""
    one = counted(1, params)
    assert one.launches <= 200 and one.calls <= 120
    for rows in (8, 64):
        many = counted(rows, params)
        assert many.launches == one.launches
        assert (many.calls - one.calls) / (rows - 1) <= 5.5
