"""What follows the card where nobody named it: sequences and steps of the transformers engine, what is held back."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.core.hardware import Hardware, parse_gpu
from qserve.hub import resolve
from qserve.planner import Plan, make_plan, plan_request
from qserve.units import GIB


def plan_of(gpu: str, model: str, **fixed: Any) -> Plan:
    machine = Hardware(parse_gpu(gpu), 512 * GIB, 500 * GIB, 64)
    return make_plan(resolve(model), machine, plan_request(**fixed))


def held_back(plan: Plan) -> int:
    return sum(term.num_bytes for device in plan.devices for term in device.terms if term.name == "held back")


@pytest.mark.parametrize(
    ("gpu", "seqs", "tokens"), [("rtx-4090", 16, 2048), ("l40s", 32, 4096), ("h100-sxm", 64, 4096), ("h200", 64, 4096)]
)
def test_sequences_and_steps_of_the_transformers_engine_follow_the_card(gpu: str, seqs: int, tokens: int) -> None:
    limits = plan_of(gpu, "Qwen/Qwen3-8B", engine="transformers", quant="bf16").workload
    assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (seqs, tokens)


def test_a_large_card_has_a_larger_pool() -> None:
    """16 sequences and 65,536 tokens were the most on any card."""
    plan = plan_of("h200", "Qwen/Qwen3-8B", engine="transformers", quant="bf16")
    assert plan.kv_cache_tokens >= 4 * 65_536


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_where_logs_held_more_the_lower_band_is_started() -> None:
    plan = plan_of("rtx-5090", "RedHatAI/Qwen3.6-35B-A3B-NVFP4", max_num_seqs=4)
    taken = plan_of("rtx-5090", "RedHatAI/Qwen3.6-35B-A3B-NVFP4", max_num_seqs=4, gpu_memory_utilization=0.92)
    assert 1.0 * GIB < held_back(plan) < 3 * GIB
    assert held_back(taken) == 0
    assert taken.placement.kv_cache_memory_bytes - plan.placement.kv_cache_memory_bytes >= 0.9 * held_back(plan)
    (note,) = [note for note in plan.notes if "held back" in note]
    assert "--gpu-memory-utilization takes them" in note


def test_nothing_is_held_back_where_logs_agree() -> None:
    assert held_back(plan_of("rtx-4090", "Qwen/Qwen3-32B", quant="4bit")) == 0
    assert held_back(plan_of("h100-sxm:2", "Qwen/Qwen3-32B")) == 0
