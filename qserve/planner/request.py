"""What the user fixed; everything that is None is the planner's to choose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from qserve.core.tensors import DTYPE_BYTES
from qserve.errors import UsageError

__all__ = ["VLLM_ONLY", "EngineName", "Offload", "PlanRequest"]

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

    def only_vllm_reads(self) -> tuple[str, ...]:
        """Flags that are set to something and that the transformers engine has no use for."""
        harmless = (None, False)
        return tuple(
            "--" + name.replace("_", "-")
            for name in VLLM_ONLY
            if getattr(self, name) not in harmless and not (name.endswith("parallel_size") and getattr(self, name) == 1)
        )

    def without_vllm(self) -> PlanRequest:
        """The same request for the transformers engine."""
        defaults: dict[str, Any] = {name: getattr(PlanRequest(), name) for name in VLLM_ONLY}
        return replace(self, engine="transformers", engine_version=None, **defaults)


VLLM_ONLY = (
    "tensor_parallel_size", "pipeline_parallel_size", "gpu_memory_utilization", "enforce_eager", "block_size",
    "enable_prefix_caching", "num_speculative_tokens", "language_model_only", "mamba_ssm_cache_dtype",
)  # fmt: skip
"""Fields that the transformers engine does not read."""
