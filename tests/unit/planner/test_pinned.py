"""Which first starts keep the copy of the embedding: the logs that show it, and those that don't."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.planner import make_plan, plan_request
from qserve.planner.plan import Plan
from qserve.units import GIB, MIB
from tests.unit.planner.test_make_plan import checkpoint_of, machine

_COPY = "pinned segment"


def pinned(plan: Plan) -> int:
    return next((term.num_bytes for term in plan.devices[0].terms if term.name == _COPY), 0)


AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}


def start(model: str, card: str, release: str = "0.28.0", packing: dict[str, Any] | None = None, **fixed: Any) -> Plan:
    """A first start as its log has it: sequences and step by the release's default, the length short."""
    steps = {"max_model_len": 4096, "max_num_seqs": 256, "max_num_batched_tokens": 2048, **fixed}
    quant = "auto" if packing else "bf16"
    request = plan_request(engine="vllm", engine_version=release, quant=quant, **steps)
    return make_plan(checkpoint_of(model, **(packing or {})), machine(card), request)


def test_a_workspace_of_32_mib_fits_nowhere_else() -> None:
    """Qwen3-4B on an RTX 5090, vLLM 0.29: 0.76 GiB less than one copy explains."""
    assert pinned(start("Qwen/Qwen3-4B", "rtx-5090", "0.29.0")) / GIB == pytest.approx(0.725, abs=0.001)


def test_one_of_8_mib_lies_beside_the_tokens_of_the_prompts() -> None:
    """Qwen3-8B on an RTX 4090: the table of those tokens leaves 15.4 MiB of its segment."""
    assert pinned(start("Qwen/Qwen3-8B", "rtx-4090")) == 0


def test_a_rotary_table_in_the_same_segment_leaves_too_little() -> None:
    """Qwen2.5-7B on an RTX 4090, 0.27: 19,000 tokens fewer. Its table has 8 MiB, that of Qwen3 10 in a segment."""
    assert pinned(start("Qwen/Qwen2.5-7B", "rtx-4090", "0.27.1")) // MIB == 1040


def test_packed_linears_come_to_cublas_at_lm_head_where_a_stream_is_free() -> None:
    """Qwen3-14B-AWQ on an L40S; on an RTX 5090 the stream of 20 MiB is less than the workspace."""
    assert pinned(start("Qwen/Qwen3-14B", "l40s", packing=AWQ)) == 0
    assert pinned(start("Qwen/Qwen3-14B", "rtx-5090", packing=AWQ)) / GIB == pytest.approx(1.449, abs=0.001)


def test_several_ranks_have_a_stream_to_spare() -> None:
    """Two RTX PRO 6000 with Qwen3-32B, 0.27: nothing is missing."""
    wide: dict[str, Any] = {"max_num_batched_tokens": 8192, "max_num_seqs": 1024}
    assert pinned(start("Qwen/Qwen3-32B", "rtx-pro-6000:2", tensor_parallel_size=2, **wide)) == 0
    assert pinned(start("Qwen/Qwen3-32B", "rtx-pro-6000", **wide)) > GIB


@pytest.mark.parametrize(
    "changes", [{"release": "0.26.0"}, {"release": "0.31.0"}, {"enforce_eager": True}, {"warm_compile_cache": True}]
)
def test_only_a_first_start_of_0_27_to_0_30_pays_for_it(changes: dict[str, Any]) -> None:
    assert pinned(start("Qwen/Qwen3-4B", "rtx-5090", **changes)) == 0


def test_what_is_pinned_is_held_and_taken_from_the_cache() -> None:
    cold, warm = (start("Qwen/Qwen3-4B", "rtx-5090", warm_compile_cache=kept) for kept in (False, True))
    first, later = cold.devices[0], warm.devices[0]
    copies = later.kv_cache_bytes + later.activations_bytes - first.kv_cache_bytes - first.activations_bytes
    assert copies == pinned(cold)
    assert sum(term.num_bytes for term in first.terms) + first.free_bytes == first.total_bytes
