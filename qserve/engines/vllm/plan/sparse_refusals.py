"""What vLLM refuses of models with an index of sparse attention, and of those with tables of n-grams.

Source: vllm 0.32 model_executor/models/config.py (Qwen4ExpForConditionalGenerationConfig), config/engram.py and
models/qwen4_exp (nvidia/qsa.py, common/qsa_cache.py, common/ngram_embedding.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Device
from qserve.core.nested import quantization_config
from qserve.core.schemes import SCHEMES, resolve_scheme
from qserve.engines.vllm.plan.options import VllmOptions
from qserve.errors import UsageError
from qserve.planner.request import PlanRequest
from qserve.planner.siblings import sibling_of

__all__ = ["refuse_of_index_and_tables"]

_CACHE_DTYPES = ("auto", "bfloat16", "fp8", "fp8_e4m3")
_TABLE_METHODS = ("fp8", "modelopt", "compressed-tensors", "auto-round", "inc", "quark")
_GRAIN = 16  # tokens that a block is a multiple of


def refuse_of_index_and_tables(checkpoint: Checkpoint, device: Device, request: PlanRequest) -> None:
    """Raises UsageError for what a start would end with."""
    spec, options = checkpoint.spec, request.of(VllmOptions)
    if options.engram_config is not None and spec.ngrams is None:
        raise UsageError(f"--engram-config: {checkpoint.id} has no tables of n-grams; leave it out")
    if (spec.index or spec.ngrams) and device.kind == "cpu":
        raise UsageError(
            f"{checkpoint.id} has sparse attention or tables of n-grams, which vLLM computes on cards alone; describe "
            "cards with --gpu NAME:COUNT"
        )
    if spec.ngrams:
        _refuse_stages_and_formats(checkpoint, options)
        _refuse_in_flight(checkpoint, request)
    if spec.index:
        _refuse_dtypes(checkpoint, device, request)
        _refuse_ring(checkpoint, options)


def _refuse_stages_and_formats(checkpoint: Checkpoint, options: VllmOptions) -> None:
    stages = options.pipeline_parallel_size or 1
    if stages > 1:
        raise UsageError(
            f"--pipeline-parallel-size {stages}: tables of n-grams are looked up by the tokens of a prompt, which vLLM "
            f"gives to the first stage alone; leave it out, and share the layers of {checkpoint.id} by "
            "--tensor-parallel-size"
        )
    method = _method(checkpoint.config)
    if method and not method.startswith(_TABLE_METHODS):
        raise UsageError(
            f"{checkpoint.id} is stored by {method}, and vLLM loads tables of n-grams beside "
            f"{', '.join(_TABLE_METHODS)} alone; give another checkpoint of the model"
        )


def _refuse_in_flight(checkpoint: Checkpoint, request: PlanRequest) -> None:
    """Of 16-bit weights nothing is made while loading: a scheme needs a checkpoint that is stored so."""
    if checkpoint.spec.quantization is not None:
        return
    asked = resolve_scheme(request.quant)
    if any(SCHEMES[scheme].bits >= 16 or sibling_of(checkpoint.id, scheme) for scheme in asked):
        return
    stored = [scheme for scheme in SCHEMES if sibling_of(checkpoint.id, scheme)]
    known = f"; checkpoints are known in {', '.join(stored)}" if stored else ""
    raise UsageError(
        f"--quant {request.quant}: vLLM loads tables of n-grams as they are stored, and makes no other format of "
        f"{checkpoint.id} while loading{known}"
    )


def _method(config: Mapping[str, Any]) -> str:
    """The quant_method of a config.json; empty for 16 bit."""
    return str((quantization_config(config) or {}).get("quant_method", "")).lower().replace("_", "-")


def _refuse_dtypes(checkpoint: Checkpoint, device: Device, request: PlanRequest) -> None:
    options = request.of(VllmOptions)
    asked = request.dtype if request.dtype not in (None, "auto") else None
    scheme = SCHEMES.get(request.quant)
    of_scheme = scheme.dtype or request.quant if scheme is not None and scheme.bits >= 16 else None
    for flag, dtype in (("--dtype", asked), ("--quant", of_scheme)):
        if dtype not in (None, "bfloat16", "bf16"):
            given = request.quant if flag == "--quant" else dtype
            raise UsageError(
                f"{flag} {given}: vLLM's kernels for the index of {checkpoint.id} compute in bfloat16; leave it out"
            )
    if device.kind == "cuda" and not device.supports("bf16"):
        raise UsageError(
            f"{device.name} has no bfloat16, in which alone vLLM computes the index of {checkpoint.id}; it needs a "
            "card of compute capability 8.0 or later"
        )
    if options.kv_cache_dtype not in _CACHE_DTYPES:
        raise UsageError(
            f"--kv-cache-dtype {options.kv_cache_dtype}: vLLM's kernels for the index of {checkpoint.id} read a cache "
            f"in {', '.join(_CACHE_DTYPES[1:])}; give one of these"
        )


def _refuse_ring(checkpoint: Checkpoint, options: VllmOptions) -> None:
    """A ring of keys holds the open block and every draft, in whole blocks, and must divide a block of the cache."""
    index, drafts = checkpoint.spec.index, options.num_speculative_tokens
    assert index is not None, "called for models with an index"
    ratio, block = index.compress_ratio, options.block_size or _GRAIN
    ring = _ring(ratio, drafts)
    if not block % ring:
        return
    wider = f"--block-size {math.lcm(_GRAIN, ring)}"
    kept = f"the index of {checkpoint.id} keeps {ring} keys of a sequence, which must divide a block of its cache"
    if not drafts:
        raise UsageError(f"--block-size {block}: {kept}; give {wider}")
    able = [n for n in range(1, block - ratio + 1) if not block % _ring(ratio, n)]
    instead = f"give {_ranges(able)}" if able else "leave it out"
    raise UsageError(f"--num-speculative-tokens {drafts}: {kept}; {instead}, or {wider}")


def _ring(ratio: int, drafts: int) -> int:
    return -(-(ratio + drafts) // ratio) * ratio


def _ranges(numbers: list[int]) -> str:
    """'4 or fewer, or 9 to 12' of 1 to 4 and 9 to 12."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    return ", or ".join(
        f"{run[-1]} or fewer" if run[0] == 1 else f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0])
        for run in runs
    )
