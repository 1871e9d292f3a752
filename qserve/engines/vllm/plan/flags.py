"""The command-line arguments of `vllm serve <checkpoint>` that put a plan into effect."""

from __future__ import annotations

import json
from itertools import chain

from qserve.engines.vllm.plan.options import VllmOptions
from qserve.engines.vllm.plan.schemes import quantization_flag
from qserve.planner.candidate import Candidate
from qserve.planner.options import Option, options_of
from qserve.planner.plan import Plan

__all__ = ["engine_args"]


def engine_args(candidate: Candidate, plan: Plan) -> tuple[str, ...]:
    """What the plan chose, then what the request fixed: values first, switches after them, lists at the end.

    --max-num-seqs and --kv-cache-memory-bytes are always there: the first decides activations and graphs, the second
    makes start-up independent of what else moves on the card.
    """
    workload, placement = plan.workload, plan.placement
    chosen: list[tuple[str, str | int | float | None]] = [
        ("--dtype", plan.dtype),
        ("--quantization", quantization_flag(plan.quant.scheme) if plan.quant.in_flight else None),
        ("--max-model-len", workload.max_model_len),
        ("--max-num-seqs", workload.max_num_seqs),
        ("--max-num-batched-tokens", workload.max_num_batched_tokens),
        ("--kv-cache-dtype", plan.kv_cache_dtype if plan.kv_cache_dtype != "auto" else None),
        ("--tensor-parallel-size", _above_one(placement.tensor_parallel_size)),
        ("--pipeline-parallel-size", _above_one(placement.pipeline_parallel_size)),
        # vLLM still holds the free memory of a card against this share; on a CPU it is not read beside the bytes.
        ("--gpu-memory-utilization", placement.gpu_memory_utilization if not candidate.on_cpu else None),
        ("--kv-cache-memory-bytes", placement.kv_cache_memory_bytes),
        ("--hf-overrides", json.dumps(plan.overrides) if plan.overrides else None),
    ]
    options = candidate.request.of(VllmOptions)
    sent = sorted(options_of(VllmOptions), key=_rank)
    return (
        *(part for name, value in chosen if value is not None for part in (name, str(value))),
        *chain.from_iterable(one.arguments(getattr(options, one.name)) for one in sent),
    )


def _rank(option: Option) -> int:
    return {"flag": 1, "switch": 1, "names": 2}.get(option.kind, 0)


def _above_one(size: int) -> int | None:
    return size if size > 1 else None
