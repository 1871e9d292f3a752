"""What a plan says of vLLM's bf16 on a CPU without AVX-512."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.core.hardware import CpuFeatures, Hardware
from qserve.hub import resolve
from qserve.planner import make_plan, plan_request
from qserve.units import GIB

AVX2, AVX512 = frozenset({"avx2", "fma"}), frozenset({"avx2", "fma", "avx512f", "avx512_vnni"})


@pytest.mark.parametrize(
    ("engine", "dtype", "flags", "is_said"),
    [
        ("vllm", None, AVX2, True),
        ("vllm", "float32", AVX2, False),
        ("vllm", None, AVX512, False),
        ("transformers", None, AVX2, False),
    ],
)
def test_bf16_without_avx512_is_said_to_be_slow(engine: str, dtype: str, flags: frozenset[str], is_said: bool) -> None:
    machine = Hardware((), 64 * GIB, 64 * GIB, 4, CpuFeatures("", flags))
    settings: dict[str, Any] = {"dtype": dtype} if dtype else {"quant": "bf16"}
    plan = make_plan(resolve("demo"), machine, plan_request(engine=engine, max_model_len=512, **settings))
    assert any("without AVX-512" in note for note in plan.notes) == is_said
