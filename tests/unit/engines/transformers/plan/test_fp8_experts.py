"""What grouped products of experts in fp8 take of a card beside weights is in the plan."""

from __future__ import annotations

import pytest

from qserve.engines.transformers.plan.memory import fp8_experts_bytes
from qserve.hub import resolve
from qserve.units import MIB
from tests.unit.planner.test_graphs import plan_of

MODEL = "Qwen/Qwen3-30B-A3B"


@pytest.mark.parametrize(("tokens", "mib"), [(1024, 1024 * 8 * (2048 + 768) * 2 / MIB), (100_000, 128)])
def test_rows_between_the_products_are_bounded(tokens: int, mib: float) -> None:
    """Of a long row a piece at a time."""
    assert fp8_experts_bytes(resolve(MODEL).spec, "bfloat16", tokens) == pytest.approx(mib * MIB, rel=0.001)
    assert fp8_experts_bytes(resolve("Qwen/Qwen3-32B").spec, "bfloat16", tokens) == 0


def test_a_plan_has_them_where_they_are_more_than_rows_in_fp8() -> None:
    """2,048 rows: 88 MiB, where the widest layer's rows in fp8 and 16 bits take 36."""
    asked = {"max_num_seqs": 16, "max_model_len": 8192, "max_num_batched_tokens": 2048}
    plan, plain = (plan_of("h100-sxm", MODEL, quant=quant, **asked) for quant in ("fp8", "bf16"))
    assert plan.devices[0].activations_bytes - plain.devices[0].activations_bytes == 88 * MIB
    (term,) = (term for term in plan.devices[0].terms if term.name == "activations")
    assert "+ 88 MiB of rows between experts' products" in term.formula
