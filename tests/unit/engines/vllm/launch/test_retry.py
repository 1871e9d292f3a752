"""The second try: only with numbers that the engine reported, and only where they help."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qserve.engines.vllm.launch.failure import Failure, FailureKind
from qserve.engines.vllm.launch.retry import retry_with
from qserve.units import GIB
from tests.unit.engines.vllm.builders import pairs, plan_of

PLAN = plan_of("Qwen/Qwen3-8B", "rtx-4090", quant="bf16", max_model_len=8192, max_num_seqs=64)


def failure(kind, **numbers):
    return Failure(kind, "because", **numbers)


def test_a_shorter_length_where_the_engine_names_one():
    again = retry_with(PLAN, failure(FailureKind.KV_CACHE_TOO_SMALL, max_model_len=5000))
    assert again.workload.max_model_len == 4992
    assert pairs(again.engine_args)["--max-model-len"] == "4992"
    assert again.engine_args.count("--max-model-len") == 1
    assert again.max_concurrency == PLAN.kv_cache_tokens / 4992
    assert again.notes[-1] == "changed after vLLM refused the plan: --max-model-len 4992 in place of 8192"
    assert replace(again, workload=PLAN.workload).placement == PLAN.placement


@pytest.mark.parametrize("longest", [None, 100, 8192, 9000])
def test_no_length_that_nobody_would_want_or_that_changes_nothing(longest):
    assert retry_with(PLAN, failure(FailureKind.KV_CACHE_TOO_SMALL, max_model_len=longest)) is None


def test_fewer_sequences_where_the_engine_names_a_number():
    again = retry_with(PLAN, failure(FailureKind.TOO_MANY_SEQUENCES, max_num_seqs=30))
    assert again.workload.max_num_seqs == 30
    assert pairs(again.engine_args)["--max-num-seqs"] == "30"
    assert retry_with(PLAN, failure(FailureKind.TOO_MANY_SEQUENCES, max_num_seqs=64)) is None


def test_a_smaller_cache_by_what_was_missing():
    numbers = {"needed_bytes": GIB, "available_bytes": GIB // 2, "during_cache": True}
    again = retry_with(PLAN, failure(FailureKind.OUT_OF_MEMORY, **numbers))
    less = PLAN.placement.kv_cache_memory_bytes - again.placement.kv_cache_memory_bytes
    assert GIB // 2 < less < GIB
    assert pairs(again.engine_args)["--kv-cache-memory-bytes"] == str(again.placement.kv_cache_memory_bytes)
    assert again.devices[0].kv_cache_bytes == PLAN.devices[0].kv_cache_bytes - less
    assert again.devices[0].free_bytes == PLAN.devices[0].free_bytes + less
    assert again.workload.max_model_len <= again.kv_cache_tokens < PLAN.kv_cache_tokens


def test_ram_that_is_short_makes_the_cache_smaller():
    """A cache of 12 GiB, of which only 10 were free when it was to be made."""
    plan = plan_of(quant="bf16", max_model_len=1024, max_num_seqs=8, kv_cache_memory_bytes=12 * GIB)
    numbers = {"needed_bytes": 12 * GIB, "available_bytes": 10 * GIB, "during_cache": True}
    again = retry_with(plan, failure(FailureKind.OUT_OF_MEMORY, **numbers))
    assert 9 * GIB < again.placement.kv_cache_memory_bytes < 10 * GIB


def test_no_smaller_cache_for_weights_that_do_not_fit():
    numbers = {"needed_bytes": GIB, "available_bytes": GIB // 2, "during_cache": False}
    assert retry_with(PLAN, failure(FailureKind.OUT_OF_MEMORY, **numbers)) is None


def test_no_cache_that_holds_not_even_one_request():
    numbers = {"needed_bytes": 5 * GIB, "available_bytes": 0, "during_cache": True}
    assert retry_with(PLAN, failure(FailureKind.OUT_OF_MEMORY, **numbers)) is None


def test_a_card_that_others_use_is_taken_as_it_is():
    share, total = PLAN.placement.gpu_memory_utilization, PLAN.devices[0].total_bytes
    numbers = {"needed_bytes": int(share * total), "available_bytes": int(share * total) - GIB}
    again = retry_with(PLAN, failure(FailureKind.MEMORY_TAKEN, **numbers))
    assert again.placement.gpu_memory_utilization * total < numbers["available_bytes"]
    assert pairs(again.engine_args)["--gpu-memory-utilization"] == str(again.placement.gpu_memory_utilization)
    held = again.devices[0].total_bytes - again.devices[0].free_bytes
    assert held <= numbers["available_bytes"]


@pytest.mark.parametrize("kind", list(FailureKind))
def test_nothing_is_guessed_without_numbers(kind):
    assert retry_with(PLAN, failure(kind)) is None
