"""What the user fixed; everything that is None is the planner's to choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qserve.core.tensors import DTYPE_BYTES
from qserve.errors import UsageError

__all__ = ["EngineName", "Offload", "PlanRequest"]

EngineName = Literal["vllm", "transformers"]
Offload = Literal["none", "cpu", "disk"]


@dataclass(frozen=True)
class PlanRequest:
    """The flags of `qserve plan` and `qserve up`, in the spelling of the engines.

    `engine_version` is a release of the engine ("0.32.0"). `offload` allows layers in RAM, or in RAM and on disk
    (transformers). `prompt_logprobs` asks for room for `echo` with `logprobs` (lm-eval).
    """

    quant: str = "auto"
    dtype: str | None = None
    engine: EngineName | None = None
    engine_version: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    prompt_len: int | None = None
    prompt_logprobs: bool = False
    enforce_eager: bool = False
    enable_prefix_caching: bool | None = None
    num_speculative_tokens: int = 0
    language_model_only: bool = False
    mamba_ssm_cache_dtype: str | None = None
    block_size: int | None = None
    offload: Offload = "none"

    def __post_init__(self) -> None:
        """Raises UsageError for a dtype that nobody knows."""
        for flag, name in (
            ("--dtype", self.dtype),
            ("--kv-cache-dtype", self.kv_cache_dtype),
            ("--mamba-ssm-cache-dtype", self.mamba_ssm_cache_dtype),
        ):
            if name not in (None, "auto") and name not in DTYPE_BYTES:
                raise UsageError(f"{flag} {name!r} is unknown; it takes auto or one of {', '.join(DTYPE_BYTES)}")
