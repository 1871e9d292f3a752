"""The probe of a CPU, run for real: quantities that plans can be made with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from qserve.core.quantization.weight_format import BF16
from qserve.engines.transformers import cpu_rates
from qserve.engines.transformers.cpu_rates import CpuProbe
from qserve.hub import resolve
from qserve.model.cpu.build import library
from qserve.model.cpu.linear import takes_bfloat16
from qserve.model.cpu.matrix import has_int8_activations
from qserve.planner.speed.terms.cpu import LARGE_WEIGHTS, SMALL_WEIGHTS, CpuRates
from qserve.planner.speed.terms.network import rank_network


@pytest.fixture(scope="module")
def probe() -> Iterator[CpuProbe]:
    """Of two matrices of each size: how fast they are is nobody's concern here."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_SMALL", "_LARGE"):
            patch.setattr(cpu_rates, name, getattr(cpu_rates, name)[:2])
        yield CpuProbe()


def test_what_is_measured_can_be_planned_with(probe: CpuProbe) -> None:
    threads = torch.get_num_threads()
    found = CpuRates.from_json(probe.all_rates(seconds=0.0))
    assert torch.get_num_threads() == threads, "the caller's setting stays"
    for rates, layers in ((found, probe._small.own), *([(found.fewer, probe._small.library)] if found.fewer else [])):
        assert rates.read_bytes_per_s > 1e8
        assert rates.gemm_flop_per_s > 1e9
        for products in (rates.linear_ps, rates.large_ps):
            rows = [1, 4, 8, 16] if layers.is_emulated else [1, 4, 8, 16, 64, 256, 1024]
            assert [count for count, _ in products] == rows
    assert found.cores == threads
    coded = {"int8", "4bit"} if library() is not None else set()
    if coded and has_int8_activations():
        coded |= {"int8-exact", "4bit-exact"}
    if probe.dtype == torch.float32:
        coded.add("fp32")
    assert {name for name, _ in found.coded_ps} == coded | {f"{name}-large" for name in coded}
    assert (found.fewer is None) == (threads == 1)
    assert not found.unfused_ps, "our engine's norms are compiled"
    if found.fewer:
        assert [rows for rows, _ in found.fewer.unfused_ps] == [1, 16, 64, 256, 1024]
        each = [ps / rows for rows, ps in found.fewer.unfused_ps]
        assert min(each) > 1, "no core moves a TB/s"


def test_norms_and_gates_are_counted_as_plans_count_them() -> None:
    spec = resolve("Qwen/Qwen3-0.6B").spec
    assert cpu_rates._Unfused().bytes_per_token * spec.num_hidden_layers == rank_network(spec, BF16).unfused_bytes


def test_matrices_are_as_large_as_the_plan_takes_them_for(probe: CpuProbe) -> None:
    for layers, weights in ((probe._small, SMALL_WEIGHTS), (probe._large, LARGE_WEIGHTS)):
        assert {width * out for width, out in layers.sizes} == {weights}


def test_our_own_products_are_one_call_as_in_a_step(probe: CpuProbe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Called from Python each would be charged with that call, and with threads that have fallen asleep before it."""
    if not probe._small.is_compiled:
        pytest.skip("this processor has no products of our own")
    matrices = probe._small.own.layers
    inputs = {one.in_features: torch.randn(3, one.in_features).to(torch.bfloat16) for one in matrices}
    wanted = matrices[-1].product(inputs[matrices[-1].in_features])
    monkeypatch.setattr(type(matrices[-1]), "product", None)
    assert torch.equal(probe._small.own.begins(matrices, inputs)(), wanted)


def test_layers_in_bf16_are_measured_in_bf16(probe: CpuProbe) -> None:
    """An AVX2 machine multiplies bf16 by our own products: what torch does in 32 bit there is no engine's layer."""
    for layers in (probe._small, probe._large):
        assert layers.own.dtype == layers.library.dtype == torch.bfloat16
        assert layers.is_compiled == takes_bfloat16()
