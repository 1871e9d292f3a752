"""How long a run is estimated to take, against QwenLM's table of seconds an iteration on an A100 of 80 GB."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from qserve.core.hardware import parse_gpu
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.planner.training import TrainingRequest, plan_training
from tests.golden.training import qwen1_spec

# Seconds an iteration of 8 micro-batches of one row, by length. Source: README.md of QwenLM/Qwen at 03cd81f.
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
PUBLISHED = {
    ("Qwen-1.8B", "lora"): (1.0, 1.0, 1.1, 1.7, 3.3, 6.8),
    ("Qwen-7B", "lora"): (1.2, 1.5, 2.8, 5.2, 10.1, 21.3),
    ("Qwen-14B", "lora"): (1.6, 2.4, 4.4, 8.4, 17.0, 36.0),
    ("Qwen-1.8B", "qlora"): (1.4, 1.4, 1.4, 2.0, 3.4, 6.5),
    ("Qwen-7B", "qlora"): (3.0, 3.0, 3.5, 7.0, 11.6, 22.3),
    ("Qwen-14B", "qlora"): (5.3, 6.3, 8.2, 11.8, 20.1, 38.3),
    ("Qwen-1.8B", "sft"): (2.1, 2.2, 2.2, 2.3, 2.8, 5.6),
}
ROWS = [
    (model, method, length, seconds)
    for (model, method), row in PUBLISHED.items()
    for length, seconds in zip(LENGTHS, row, strict=True)
]


def estimated_s(model: str, method: str, length: int) -> tuple[float, float, float]:
    """(low, expected, high) of one iteration."""
    spec = qwen1_spec(model)
    request = TrainingRequest(
        method, max_length=length, gradient_accumulation_steps=8, lora_rank=0 if method == "sft" else 64
    )
    if method == "qlora":  # GPTQ, as the README has it
        spec = replace(spec, quantization=CheckpointQuantization("gptq-int4", 4, 128))
    duration = plan_training(spec, parse_gpu("a100-80gb"), request, num_rows=8).duration
    assert duration is not None and duration.num_rows == 8
    return duration.low_s, duration.expected_s, duration.high_s


@pytest.mark.parametrize(("model", "method", "length", "seconds"), ROWS)
def test_published_iterations_lie_in_the_band(model: str, method: str, length: int, seconds: float) -> None:
    low, _, high = estimated_s(model, method, length)
    assert low <= seconds <= high


def test_the_estimates_are_right_in_the_mean() -> None:
    ratios = [estimated_s(model, method, length)[1] / seconds for model, method, length, seconds in ROWS]
    assert statistics.geometric_mean(ratios) == pytest.approx(1, abs=0.1)
