"""CUDA graphs of the transformers engine in its plans: counted where steps are captured, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.core.hardware import Hardware, parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.engines.transformers.kernels.decode_sizes import MAX_GRAPHS, num_graphs
from qserve.engines.transformers.plan.memory import unpacked_bytes
from qserve.hub import resolve
from qserve.hub.bundled import bundled_config
from qserve.planner import Plan, make_plan, plan_request
from qserve.planner.term import Term
from qserve.units import GIB, MIB


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def plan_of(gpu: str, model: str = "Qwen/Qwen3-8B", **fixed: Any) -> Plan:
    machine = Hardware(parse_gpu(gpu), 512 * GIB, 500 * GIB, 64)
    return make_plan(resolve(model), machine, plan_request(engine="transformers", **fixed))


def graphs_of(plan: Plan) -> list[Term]:
    return [term for device in plan.devices for term in device.terms if term.name == "CUDA graphs"]


def test_sizes_are_those_of_batches() -> None:
    assert num_graphs(1) == 1
    assert num_graphs(16) == 5  # 1, 2, 4, 8, 16 rows, whatever their lengths
    assert num_graphs(64) == 4 + 7
    assert num_graphs(1024) == MAX_GRAPHS


def test_they_are_a_term_of_their_own() -> None:
    plan = plan_of("rtx-4090", quant="bf16", max_num_seqs=16, max_model_len=8192)
    (term,) = graphs_of(plan)
    assert term.num_bytes == 110 * MIB + 5 * 36 * 200_000 == plan.devices[0].cuda_graphs_bytes
    assert term.low_bytes < 0.6 * term.num_bytes
    assert term.high_bytes > 1.5 * term.num_bytes
    assert "5 graphs × 36 layers" in term.formula


@pytest.mark.parametrize(("quant", "beside_mib"), [("bnb-int8", 64), ("bnb-nf4", 64), ("fp8", 72)])
def test_quantized_products_are_captured_with_a_piece_of_a_weight_in_16_bit(quant: str, beside_mib: int) -> None:
    """64 MiB at once of a weight of 96 MiB, beside a step and again in the graphs' own memory.

    A step by weights in fp8 has its rows in fp8 as well: 2,048 × 12,288, and a copy in 16 bits.
    """
    asked = {"max_num_seqs": 16, "max_model_len": 8192}
    plan, plain = plan_of("rtx-4090", quant=quant, **asked), plan_of("rtx-4090", quant="bf16", **asked)
    (term,) = graphs_of(plan)
    assert term.num_bytes == 110 * MIB + 64 * MIB + 5 * 36 * 200_000
    assert plan.devices[0].activations_bytes - plain.devices[0].activations_bytes == beside_mib * MIB
    assert "64 MiB of a quantized weight in bfloat16" in term.formula


@pytest.mark.parametrize(("model", "mib"), [("Qwen/Qwen3-0.6B", 12), ("Qwen/Qwen3-30B-A3B", 24)])
def test_the_largest_weight_of_a_dense_decoder_is_gate_above_up(model: str, mib: int) -> None:
    """2 × 3,072 × 1,024 in 16 bit; experts' layers multiply by none that is made of several: 6,144 × 2,048."""
    assert unpacked_bytes(ModelSpec.from_config(bundled_config(model), model), "bfloat16") == mib * MIB


@pytest.mark.parametrize(
    ("gpu", "model", "fixed"),
    [
        ("rtx-4090:2", "Qwen/Qwen3-14B", {"quant": "bf16"}),  # hooks between cards
        ("h100-sxm", "Qwen/Qwen3-30B-A3B", {"quant": "bf16"}),  # experts
        ("rtx-4090", "Qwen/Qwen3-8B", {"quant": "bf16", "engine_version": "4.51.3", "max_model_len": 4096}),
        ("rtx-4090", "Qwen/Qwen3-14B", {"quant": "bf16", "offload": "cpu"}),
        ("rtx-4090", "Qwen/Qwen3-8B", {"quant": "bf16", "engine_version": "5.18.0"}),  # the batcher of rows
    ],
)
def test_steps_that_are_not_captured_need_none(gpu: str, model: str, fixed: dict[str, Any]) -> None:
    plan = plan_of(gpu, model, **fixed)
    assert plan.fits
    assert graphs_of(plan) == []


def test_a_card_with_no_room_for_them_serves_without() -> None:
    asked = {"quant": "bf16", "max_num_seqs": 16, "max_model_len": 4096}
    whole = plan_of("rtx-4090", **asked)
    device = whole.devices[0]
    least = device.weights_bytes + device.activations_bytes + device.runtime_bytes + 4096 * 147_456
    tight = plan_of(f"memory={(least + 100 * MIB) / 0.98 / GIB:.2f}GiB,sm=128", **asked)
    assert tight.fits
    assert graphs_of(tight) == []
    (note,) = (note for note in tight.notes if note.startswith("No CUDA graphs: "))
    assert "144.3 MiB for them" in note
    assert "--max-num-seqs" in note
    assert not any("not captured" in note for note in whole.notes)
