"""What the user fixed; everything that is None is the planner's to choose."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from qserve.errors import UsageError
from qserve.planner.engines.transformers.device_map import Mode, Place
from qserve.planner.engines.transformers.module_map import ModuleMap, parse_limits
from qserve.planner.engines.vllm.media import MediaLimits, parse_media
from qserve.planner.engines.vllm.memory.lora import RANKS, Adapters
from qserve.planner.learned import Residual

__all__ = ["VLLM_ONLY", "EngineName", "Offload", "PlanRequest"]

EngineName = Literal["vllm", "transformers"]
Offload = Literal["none", "cpu", "disk"]

_DTYPES = ("bfloat16", "float16", "float32", "bf16", "fp16", "fp32", "half", "float")
# Those of vLLM's that the planner has bytes for. Source: vllm 0.32 config/cache.py, CacheDType.
_CACHE_DTYPES = (
    "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_per_token_head", "int8_per_token_head",
)  # fmt: skip


@dataclass(frozen=True)
class PlanRequest:
    """The flags of `qserve plan` and `qserve up`, in the spelling of the engines.

    `engine_version` is a release of the engine ("0.32.0"). `offload` allows layers in RAM, or in RAM and on disk
    (transformers). `device_map` says how layers are laid over devices, or where each lies; `max_memory` what may be
    taken of each device in all, "0=20GiB,cpu=64GiB": cards that it does not name stay free. `prompt_logprobs` asks for
    room for `echo` with `logprobs` (lm-eval). `warm_compile_cache`: vLLM has started this before and kept the code.
    `lora_target_modules` are names with commas between, the two mm fields JSON objects as vLLM takes them.
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
    limit_mm_per_prompt: str | None = None
    mm_processor_kwargs: str | None = None
    skip_mm_profiling: bool = False
    warm_compile_cache: bool = False
    mamba_ssm_cache_dtype: str | None = None
    block_size: int | None = None
    max_cudagraph_capture_size: int | None = None
    hf_overrides: str | None = None
    enable_lora: bool = False
    max_loras: int | None = None
    max_lora_rank: int | None = None
    fully_sharded_loras: bool = False
    lora_target_modules: str | None = None
    offload: Offload = "none"
    device_map: Mode | ModuleMap | None = None
    max_memory: str | None = None
    learned: tuple[Residual, ...] = ()
    """What earlier runs measured, from which `planner/learned.py` takes what holds here; no flag sets it."""

    def __post_init__(self) -> None:
        """Raises UsageError for an unknown dtype, limits that can't be read, and limits of adapters that are off."""
        if self.max_memory is not None:
            parse_limits(self.max_memory)
        parse_media(self.limit_mm_per_prompt, self.mm_processor_kwargs)
        self.overrides  # noqa: B018 (it raises)
        self._check_adapters()
        for flag, name, known in (
            ("--dtype", self.dtype, _DTYPES),
            ("--kv-cache-dtype", self.kv_cache_dtype, _CACHE_DTYPES),
            ("--mamba-ssm-cache-dtype", self.mamba_ssm_cache_dtype, _DTYPES[:3]),
        ):
            if name not in (None, "auto", *known):
                raise UsageError(f"{flag} {name!r} is unknown; it takes auto or one of {', '.join(known)}")

    def _check_adapters(self) -> None:
        names = ("max_loras", "max_lora_rank", "fully_sharded_loras", "lora_target_modules")
        given = next((name for name in names if getattr(self, name) not in (None, False)), None)
        if given is not None and not self.enable_lora:
            raise UsageError(f"--{given.replace('_', '-')} is for adapters, and they are off; add --enable-lora")
        if self.max_lora_rank is not None and self.max_lora_rank not in RANKS:
            above = next((rank for rank in RANKS if rank >= self.max_lora_rank), RANKS[-1])
            raise UsageError(
                f"--max-lora-rank {self.max_lora_rank}: vLLM takes {', '.join(map(str, RANKS))}; {above} holds "
                f"{'adapters of that rank' if above >= self.max_lora_rank else 'the largest'}"
            )

    @property
    def media(self) -> MediaLimits:
        """Images and videos of one prompt, as far as they are limited."""
        return parse_media(self.limit_mm_per_prompt, self.mm_processor_kwargs)

    @property
    def overrides(self) -> Mapping[str, Any]:
        """Keys that --hf-overrides puts in the place of config.json's own; UsageError for anything but an object."""
        try:
            read = json.loads(self.hf_overrides or "{}")
        except ValueError:
            read = None
        if not isinstance(read, dict):
            raise UsageError(f"--hf-overrides {self.hf_overrides!r} is no JSON object of keys of config.json")
        return read

    @property
    def adapters(self) -> Adapters | None:
        """What --enable-lora makes room for, with vLLM's defaults for what is not given; None without it."""
        if not self.enable_lora:
            return None
        targets = tuple(filter(None, re.split(r"[,\s]+", self.lora_target_modules or "")))
        defaults = Adapters()
        return Adapters(
            self.max_loras or defaults.max_loras,
            self.max_lora_rank or defaults.max_rank,
            self.fully_sharded_loras,
            targets,
        )

    @property
    def memory_limits(self) -> dict[Place, int] | None:
        """Bytes that --max-memory allows on each place that it names."""
        return None if self.max_memory is None else parse_limits(self.max_memory)

    def offloads_to(self, place: Literal["cpu", "disk"]) -> bool:
        """Whether layers may lie there: by --offload, or because a map or a limit names it."""
        by_flag = self.offload == "disk" or (self.offload == "cpu" and place == "cpu")
        by_limit = place in (self.memory_limits or {})
        by_map = isinstance(self.device_map, ModuleMap) and place in dict(self.device_map.places).values()
        return by_flag or by_limit or by_map

    def only_transformers_reads(self) -> tuple[str, ...]:
        """Flags that are set and that vLLM has no use for."""
        defaults = PlanRequest()
        names = (name for name in TRANSFORMERS_ONLY if getattr(self, name) != getattr(defaults, name))
        return tuple("--" + name.replace("_", "-") for name in names)

    def only_vllm_reads(self) -> tuple[str, ...]:
        """Flags that are set to something and that the transformers engine has no use for."""
        harmless = (None, False, "auto")
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
    "kv_cache_dtype", "warm_compile_cache", "enable_lora", "max_loras", "max_lora_rank", "fully_sharded_loras",
    "lora_target_modules", "limit_mm_per_prompt", "mm_processor_kwargs", "skip_mm_profiling",
    "max_cudagraph_capture_size", "hf_overrides",
)  # fmt: skip
"""Fields that the transformers engine does not read."""

TRANSFORMERS_ONLY = ("offload", "device_map", "max_memory")
"""Fields that vLLM does not read."""
