"""Sleep mode: what its pools take, and that a plan without it counts nothing of them, not even in its margin."""

from __future__ import annotations

import pytest

from qserve.errors import UsageError
from tests.unit.planner.test_make_plan import plan_of


def test_the_pools_are_a_term_and_widen_the_margin_by_what_they_may_take() -> None:
    awake = plan_of("Qwen/Qwen3-8B", "rtx-4090")
    plan = plan_of("Qwen/Qwen3-8B", "rtx-4090", enable_sleep_mode=True)
    (pools,) = [term for term in plan.devices[0].terms if term.name == "sleep pools"]
    assert pools.low_bytes < pools.num_bytes < pools.high_bytes
    assert plan.devices[0].terms != awake.devices[0].terms


@pytest.mark.parametrize(("model", "gpu"), [("Qwen/Qwen2-72B", "t4"), ("Qwen/Qwen3-8B", "rtx-4060")])
def test_a_plan_without_it_names_no_pool(model: str, gpu: str) -> None:
    """Every uncertain term of a margin is one that the plan shows."""
    plan = plan_of(model, gpu)
    assert not [term for term in plan.devices[0].terms if "sleep" in f"{term.name} {term.formula}"]


@pytest.mark.parametrize("quant", ["bf16", "awq"])
def test_segments_of_weights_that_can_sleep_do_not_grow(quant: str) -> None:
    """vllm 0.32 cumem.py turns expandable segments off while it fills its pools."""
    asleep, growing, plain = (
        plan_of("Qwen/Qwen3-8B", "rtx-4090", quant=quant, **fixed).devices[0].weights_bytes
        for fixed in ({"enable_sleep_mode": True, "expandable_segments": True}, {"expandable_segments": True}, {})
    )
    assert asleep == plain > growing


def test_models_on_a_cpu_do_not_sleep() -> None:
    """vllm 0.32 platforms/interface.py, is_sleep_mode_available: of CUDA, ROCm and XPU."""
    with pytest.raises(UsageError, match="on cards alone to sleep; leave it out"):
        plan_of("Qwen/Qwen3-0.6B", None, engine="vllm", enable_sleep_mode=True)
