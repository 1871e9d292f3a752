"""The command-line arguments that put a plan into effect."""

from __future__ import annotations

import json

from qserve.core.quantization import SCHEMES
from qserve.planner.plan import Plan
from qserve.planner.setup import Setup

__all__ = ["engine_args"]


def engine_args(setup: Setup, plan: Plan) -> tuple[str, ...]:
    """Arguments of `vllm serve <checkpoint>`; nothing for transformers, whose worker reads the plan itself.

    --max-num-seqs and --kv-cache-memory-bytes are always there: the first decides activations and graphs, the second
    makes start-up independent of what else moves on the card.
    """
    if plan.engine != "vllm":
        return ()
    workload, placement, request = plan.workload, plan.placement, setup.request
    pairs: list[tuple[str, str | int | float | None]] = [
        ("--dtype", plan.dtype),
        ("--quantization", SCHEMES[plan.quant.scheme].vllm_method if plan.quant.in_flight else None),
        ("--max-model-len", workload.max_model_len),
        ("--max-num-seqs", workload.max_num_seqs),
        ("--max-num-batched-tokens", workload.max_num_batched_tokens),
        ("--kv-cache-dtype", plan.kv_cache_dtype if plan.kv_cache_dtype != "auto" else None),
        ("--tensor-parallel-size", _above_one(placement.tensor_parallel_size)),
        ("--pipeline-parallel-size", _above_one(placement.pipeline_parallel_size)),
        # vLLM still holds the free memory of a card against this share; on a CPU it is not read beside the bytes.
        ("--gpu-memory-utilization", placement.gpu_memory_utilization if not setup.on_cpu else None),
        ("--kv-cache-memory-bytes", placement.kv_cache_memory_bytes),
        ("--mamba-ssm-cache-dtype", request.mamba_ssm_cache_dtype),
        ("--block-size", request.block_size),
        ("--speculative-config", _speculation(request.num_speculative_tokens)),
        ("--max-cudagraph-capture-size", request.max_cudagraph_capture_size),
        ("--hf-overrides", request.hf_overrides),
        ("--limit-mm-per-prompt", request.limit_mm_per_prompt),
        ("--mm-processor-kwargs", request.mm_processor_kwargs),
        ("--max-loras", request.max_loras),
        ("--max-lora-rank", request.max_lora_rank),
    ]
    flags = [
        ("--enforce-eager", request.enforce_eager),
        ("--language-model-only", request.language_model_only),
        ("--enable-prefix-caching", request.enable_prefix_caching is True),
        ("--no-enable-prefix-caching", request.enable_prefix_caching is False),
        ("--skip-mm-profiling", request.skip_mm_profiling),
        ("--enable-lora", request.enable_lora),
        ("--fully-sharded-loras", request.fully_sharded_loras),
    ]
    written = [part for name, value in pairs if value is not None for part in (name, str(value))]
    targets = request.adapters.targets if request.adapters else ()
    adapted = ("--lora-target-modules", *targets) if targets else ()
    return (*written, *(name for name, is_set in flags if is_set), *adapted)


def _speculation(num_tokens: int) -> str | None:
    return json.dumps({"method": "mtp", "num_speculative_tokens": num_tokens}) if num_tokens else None


def _above_one(size: int) -> int | None:
    return size if size > 1 else None
