"""Cards that are there are used while a length is cut, or fewer than four requests of it run at once."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.core.hardware import Hardware, parse_gpu
from qserve.hub import resolve
from qserve.planner import Plan, make_plan, plan_request
from qserve.units import GIB


def plan_of(gpu: str, model: str = "Qwen/Qwen3-32B", **fixed: Any) -> Plan:
    machine = Hardware(parse_gpu(gpu), 512 * GIB, 500 * GIB, 64)
    return make_plan(resolve(model), machine, plan_request(engine="vllm", **fixed))


def test_one_h100_of_eight_would_cut_the_length() -> None:
    alone, eight = plan_of("h100-sxm"), plan_of("h100-sxm:8")
    assert alone.workload.max_model_len < 40960
    assert alone.max_concurrency < 4
    assert eight.quant == alone.quant
    assert eight.workload.max_model_len == 40960
    assert eight.max_concurrency >= 4
    (note,) = [note for note in eight.notes if note.startswith("Takes ")]
    assert f"Takes {eight.placement.tensor_parallel_size} of 8 cards: on 1, " in note
    assert f"{alone.workload.max_model_len:,} tokens" in note
    assert "--tensor-parallel-size 1 takes fewer" in note


def test_as_few_cards_as_are_enough() -> None:
    plan = plan_of("h100-sxm:8", "Qwen/Qwen3-8B")
    assert plan.placement.tensor_parallel_size == 1
    assert plan.max_concurrency >= 4
    assert not any(note.startswith("Takes ") for note in plan.notes)


def test_a_layout_that_is_fixed_stays() -> None:
    plan = plan_of("h100-sxm:8", tensor_parallel_size=1)
    assert plan.placement.tensor_parallel_size == 1


@pytest.mark.parametrize("length", [8192, 40960])
def test_a_length_that_is_fixed_counts_by_how_often_it_runs_at_once(length: int) -> None:
    plan = plan_of("h100-sxm:8", max_model_len=length)
    assert plan.max_concurrency >= 4


def test_where_all_cards_are_too_few_the_best_is_taken() -> None:
    one, two = plan_of("rtx-4090", quant="4bit"), plan_of("rtx-4090:2", quant="4bit")
    assert two.placement.tensor_parallel_size == 2
    assert (two.workload.max_model_len, two.max_concurrency) > (one.workload.max_model_len, one.max_concurrency)
