"""On a real card: quantizations are right, offloaded layers say the same, memory comes out as planned."""

from __future__ import annotations

import pytest
import torch

from bench.gpu_steps.machine import Machine
from bench.gpu_steps.offload import offloaded_tokens_row, two_cards_row
from bench.gpu_steps.quality import MOST_KL, quality_row
from bench.gpu_steps.shapes import measure_shape
from bench.limits import measure_limits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no card"),
    pytest.mark.filterwarnings("default"),  # what drivers and kernels of other cards warn of is not ours to foresee
]


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine(torch.device("cuda:0"))


@pytest.mark.parametrize("scheme", MOST_KL)
def test_quantization_stays_near_float32(machine: Machine, scheme: str) -> None:
    row = quality_row(machine, scheme)
    if row.get("skipped"):
        pytest.skip(row["skipped"])
    assert row["ok"], row


def test_offloaded_layers_say_the_same(machine: Machine) -> None:
    row = offloaded_tokens_row(machine)
    assert row["ok"], row


def test_two_cards_say_the_same(machine: Machine) -> None:
    row = two_cards_row(machine)
    if row.get("skipped"):
        pytest.skip(row["skipped"])
    assert row["ok"], row


def test_memory_is_as_planned(machine: Machine) -> None:
    row = measure_shape(machine, measure_limits(machine.device), "Qwen/Qwen3-0.6B", "bf16", (1, 8), 256, 16)
    assert row["ok"], row
