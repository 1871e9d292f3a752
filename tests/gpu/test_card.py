"""On a real card: quantizations are right, offloaded layers say the same, memory comes out as planned."""

from __future__ import annotations

import pytest
import torch

from bench.gpu_steps.kernels import kernel_row
from bench.gpu_steps.loaded import LoadedShape
from bench.gpu_steps.machine import Machine
from bench.gpu_steps.offload import offloaded_tokens_row, two_cards_row
from bench.gpu_steps.order import KERNELS, VARIANTS
from bench.gpu_steps.quality import MOST_KL, quality_row
from bench.step_counts import hold
from qserve.engines.transformers.worker.kernel_trial import try_kernels
from qserve.model.cuda.products import KERNEL
from qserve.model.cuda.trial import choose_products
from qserve.model.trials.children import first_right, in_children
from tests.unit.model.trials.faulty import trial

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


@pytest.mark.parametrize("held", ["int8", "nf4"])
def test_products_by_quantized_weights_are_right(machine: Machine, held: str) -> None:
    """In bf16, of a 32B's shapes, also where a row is alone; a product that is wrong is passed over by its reason."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(5120, outputs, bias=False) for outputs in (1024, 5120, 25600)))
    hold(layers, held)
    trials = choose_products(layers.to(machine.device), torch.bfloat16)
    assert KERNEL not in trials.passed_over, trials.sentence
    assert len(trials.chosen) == 12, trials.sentence


def test_this_card_refuses_no_kernel_of_ours(machine: Machine) -> None:
    """Each compiles and is right, and a step can be captured: what a worker finds out at start."""
    assert try_kernels(machine.device)["refused"] == []


def test_a_kernel_that_faults_takes_its_own_process_along_alone(machine: Machine) -> None:
    """A read out of bounds, after which every call in its process fails; the next is tried in another one."""
    group = [trial("is out of bounds"), trial("is out of bounds", again=True), trial("right")]
    verdicts = in_children(str(machine.device), [group])
    assert "device-side assert" in verdicts[group[0]].reason and first_right(group, verdicts) == group[2]
    assert torch.ones(2, device=machine.device).sum().item() == 2


def test_offloaded_layers_say_the_same(machine: Machine) -> None:
    row = offloaded_tokens_row(machine)
    assert row["ok"], row


def test_two_cards_say_the_same(machine: Machine) -> None:
    row = two_cards_row(machine)
    if row.get("skipped"):
        pytest.skip(row["skipped"])
    assert row["ok"], row


def test_memory_is_as_planned_and_steps_are_captured(machine: Machine) -> None:
    loaded = LoadedShape(machine, "Qwen/Qwen3-0.6B", "bf16", 8, 1024)
    try:
        row = loaded.memory()
        assert row["ok"], row
        row = loaded.decode(8, 256, 16, VARIANTS[0], sampled=False)
        assert row["ok"] and row["path"]["num_captured"], row
    finally:
        loaded.close()


@pytest.mark.parametrize("kernel", KERNELS)
def test_each_kernel_is_right_by_itself(machine: Machine, kernel: str) -> None:
    row = kernel_row(machine, kernel, "Qwen/Qwen3-8B", [1, 8], 1e12)
    assert row["ok"], row
