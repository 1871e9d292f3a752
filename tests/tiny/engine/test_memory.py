"""Memory as measured: the terms are told apart, and each is what its source says."""

from __future__ import annotations

import json
import mmap
from typing import Any

import pytest
import torch
from torch import nn

from qserve.engines.transformers.worker.api.memory import measured_memory
from qserve.model.load_cost import LoadMeter, reset_peaks, resident_bytes
from qserve.model.measured_weights import weights_by_kind, weights_bytes
from qserve.model.packed_linear import PackedLinear
from tests.tiny.engine.loading import plan_of, running

# torch's own, on the first import of its compiler.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")

MIB = 1024**2


async def test_terms_sum_up_and_lie_near_the_plan() -> None:
    async with running("demo", "bf16") as engine:
        memory = measured_memory(engine)
    planned = plan_of("demo", "bf16").devices[0]
    terms = ("weights_bytes", "kv_cache_bytes", "activations_bytes", "runtime_bytes")
    assert memory["total_bytes"] == sum(memory[term] for term in terms)
    assert memory["weights_bytes"] == pytest.approx(planned.weights_bytes, rel=0.01)
    assert memory["kv_cache_bytes"] == pytest.approx(planned.kv_cache_bytes, rel=0.01)
    # No upper bound here: what other tests' models gave back to the system counts to the peak of this process.
    assert memory["activations_bytes"] > 0
    assert memory["runtime_bytes"] > 100 * MIB  # an interpreter with torch
    assert memory["unique_bytes"] <= memory["proportional_bytes"] <= memory["resident_bytes"]
    # Not more than 0: a process that loaded before has room for a second model in what it freed.
    assert memory["load"]["peak_bytes"] >= memory["load"]["kept_bytes"] >= 0
    assert {*terms, "load", "resident_bytes"} <= set(memory["sources"])
    json.dumps(memory)  # what the route sends


@pytest.mark.parametrize("quant", ["bf16", "bnb-int8", "bnb-nf4"])
async def test_kinds_and_devices_sum_to_the_weights(quant: str) -> None:
    async with running("demo", quant) as engine:
        memory = measured_memory(engine)
    weights = {(kind, dtype): size for kind, row in memory["weights"].items() for dtype, size in row.items()}
    assert sum(weights.values()) == memory["weights_bytes"] == sum(memory["weights_by_device"].values())
    stored = {"bf16": "bfloat16", "bnb-int8": "int8", "bnb-nf4": "nf4"}[quant]
    assert {kind for kind, dtype in weights if dtype == stored} >= {"attention", "mlp"}
    # Tied: counted once. A head that is packed leaves the embedding in its file.
    (held,) = memory["weights"].keys() & {"embedding", "lm_head"}
    assert weights[held, "bfloat16"] == 1280 * 192 * 2


def test_packed_layers_are_told_by_their_kind() -> None:
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU has no bf16 kernels to pack for")
    body: Any = nn.Module()
    body.mlp = nn.Module()
    body.mlp.up_proj = PackedLinear(nn.Linear(64, 32, bias=False, dtype=torch.bfloat16))
    model = nn.Module()
    model.layer = body
    assert weights_by_kind(model) == {"mlp": {"bfloat16": 64 * 32 * 2}}
    assert weights_bytes(model) == 64 * 32 * 2


def test_the_peak_of_loading_is_seen_and_forgotten() -> None:
    """The kernel's own high-water mark: memory that was given back before anybody asked."""
    model = nn.Linear(1, 1)
    meter = LoadMeter()
    # Pages of their own: an allocator may have as many to spare from other tests.
    with mmap.mmap(-1, 64 * MIB) as block:
        for _ in range(64):
            block.write(bytes(MIB))
    cost = meter.read(model)
    assert cost.peak_bytes > 60 * MIB
    assert cost.kept_bytes < 30 * MIB
    reset_peaks()
    assert resident_bytes("VmHWM") - resident_bytes() < 10 * MIB
