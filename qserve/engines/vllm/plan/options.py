"""The options that only vLLM reads: what `qserve plan` and `qserve up` call them, and which flag of vLLM's they become.

What a plan chooses (max_num_seqs, the sizes of parallelism, the cache) is written by `flags.py`; what a request fixes
and vLLM takes as it is has its flag here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from qserve.engines.vllm.plan.media import MediaLimits, parse_media
from qserve.errors import UsageError
from qserve.planner.options import EngineOptions, option
from qserve.planner.request import DTYPES, check_word

__all__ = ["Adapters", "VllmOptions"]

# Those of vLLM's that the planner has bytes for. Source: vllm 0.32 config/cache.py, CacheDType.
_CACHE_DTYPES = (
    "bfloat16",
    "float16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_per_token_head",
    "int8_per_token_head",
    "nvfp4",
)

_PERFORMANCE = ("balanced", "interactivity", "throughput")
"""What --performance-mode takes. Source: vllm 0.32 config/vllm.py, PerformanceMode."""

_ENGRAM_KEYS = ("cpu_offload",)
"""Those that tables of Qwen read; the others are DeepSeek's alone.

Source: vllm 0.32 models/qwen4_exp/nvidia/ngram_embedding.py, models/deepseek_v41/common/engram.py.
"""

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What --max-lora-rank takes. Source: vllm config/lora.py, MaxLoRARanks."""


def _speculation(num_tokens: int) -> tuple[str, ...]:
    config = json.dumps({"method": "mtp", "num_speculative_tokens": num_tokens})
    return ("--speculative-config", config) if num_tokens else ()


def _lookup(num_tokens: int) -> tuple[str, ...]:
    """A sequence's own text is searched for its last two to four tokens, and what followed them is drafted."""
    lengths = {"prompt_lookup_max": 4, "prompt_lookup_min": 2}
    config = json.dumps({"method": "ngram", "num_speculative_tokens": num_tokens, **lengths})
    return ("--speculative-config", config) if num_tokens else ()


def _performance(mode: str) -> tuple[str, ...]:
    return ("--performance-mode", mode) if mode != "balanced" else ()


def _engram(text: str | None) -> Mapping[str, Any]:
    """Keys of --engram-config. Raises UsageError for anything but an object of those that the plan counts."""
    try:
        read = json.loads(text or "{}")
    except ValueError:
        read = None
    if not isinstance(read, dict) or any(not isinstance(read.get(key, True), bool) for key in _ENGRAM_KEYS):
        raise UsageError(
            f"--engram-config {text!r} is not a JSON object of true and false; write for example "
            "'{\"cpu_offload\": false}', with which tables of n-grams lie on the cards"
        )
    others = sorted(set(read) - set(_ENGRAM_KEYS))
    if others:
        raise UsageError(
            f"--engram-config names {', '.join(others)}, which no table of a Qwen model reads; it takes "
            f"{', '.join(_ENGRAM_KEYS)}"
        )
    return read


def _targets(text: str) -> tuple[str, ...]:
    names = tuple(filter(None, re.split(r"[,\s]+", text)))
    return ("--lora-target-modules", *names) if names else ()


@dataclass(frozen=True)
class Adapters:
    """How many may run at once and of which rank. `targets` are module names; empty: all that vLLM can adapt."""

    max_loras: int = 1
    max_rank: int = 16
    fully_sharded: bool = False
    targets: tuple[str, ...] = ()


@dataclass(frozen=True)
class VllmOptions(EngineOptions):
    """`warm_compile_cache`: vLLM has started this before and kept the compiled code."""

    engine: ClassVar[str] = "vllm"

    gpu_memory_utilization: float | None = option(
        "share", "Share of the whole card (not of what is free) that vLLM may take."
    )
    kv_cache_dtype: str = option("text", "auto, bfloat16, fp8, fp8_e5m2, nvfp4, …", "auto")
    tensor_parallel_size: int | None = option("count", "Cards that share every layer.", harmless=(1,))
    pipeline_parallel_size: int | None = option("count", "Stages of layers, one after the other.", harmless=(1,))
    data_parallel_size: int | None = option(
        "count",
        "Engines of one server over which vLLM spreads experts, each on tensor-parallel-size cards.",
        harmless=(1,),
        sent_as="--data-parallel-size",
    )
    enable_expert_parallel: bool = option(
        "flag",
        "Place whole experts on each card instead of a shard of every expert.",
        False,
        sent_as="--enable-expert-parallel",
    )
    enforce_eager: bool = option(
        "flag", "No CUDA graphs: less memory, slower decoding.", False, sent_as="--enforce-eager"
    )
    language_model_only: bool = option(
        "flag", "Do not load the vision encoder.", False, sent_as="--language-model-only"
    )
    enable_prefix_caching: bool | None = option(
        "switch",
        "Keep prompts in the KV cache for those that begin alike [on, for hybrids by release].",
        sent_as="--enable-prefix-caching",
    )
    mamba_ssm_cache_dtype: str | None = option(
        "text", "Recurrent state of hybrids, for example bfloat16.", sent_as="--mamba-ssm-cache-dtype"
    )
    block_size: int | None = option("count", "Tokens of a KV block.", sent_as="--block-size")
    num_speculative_tokens: int = option(
        "number", "Tokens that the MTP head drafts.", 0, sent_as="--speculative-config", write=_speculation
    )
    num_ngram_tokens: int = option(
        "number",
        "Tokens drafted from what the prompt and the answer hold already, without a model.",
        0,
        sent_as="--speculative-config",
        write=_lookup,
    )
    max_cudagraph_capture_size: int | None = option(
        "count", "Largest batch that vLLM captures as a CUDA graph [512].", sent_as="--max-cudagraph-capture-size"
    )
    performance_mode: str = option(
        "choice",
        "interactivity captures a CUDA graph for every batch up to 32; throughput doubles vLLM's default limits, and "
        "a plan names its own in their place.",
        "balanced",
        choices=_PERFORMANCE,
        sent_as="--performance-mode",
        write=_performance,
    )
    enable_sleep_mode: bool = option(
        "flag",
        "vLLM may be put to sleep: weights and cache in pools of their own.",
        False,
        sent_as="--enable-sleep-mode",
    )
    expandable_segments: bool = option(
        "flag",
        "Plan for PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which you set where `qserve up` runs.",
        False,
    )
    limit_mm_per_prompt: str | None = option(
        "text",
        'Images and videos of one prompt, as JSON: \'{"image": 4, "video": 0}\'.',
        sent_as="--limit-mm-per-prompt",
    )
    mm_processor_kwargs: str | None = option(
        "text", "Their largest size, as JSON: '{\"max_pixels\": 1003520}'.", sent_as="--mm-processor-kwargs"
    )
    skip_mm_profiling: bool = option(
        "flag", "vLLM does not profile images at start-up.", False, sent_as="--skip-mm-profiling"
    )
    engram_config: str | None = option(
        "text",
        "Where tables of n-grams lie, as JSON: '{\"cpu_offload\": false}' for the cards [RAM].",
        sent_as="--engram-config",
    )
    warm_compile_cache: bool = option(
        "flag", "vLLM kept the compiled code of an earlier start: the profile run copies no embedding.", False
    )
    enable_lora: bool = option("flag", "Make room for LoRA adapters in vLLM.", False, sent_as="--enable-lora")
    max_loras: int | None = option("count", "Adapters that run at once [1].", sent_as="--max-loras")
    max_lora_rank: int | None = option("count", "The largest adapter's rank [16].", sent_as="--max-lora-rank")
    fully_sharded_loras: bool = option(
        "flag", "Shard both matrices of an adapter over the cards.", False, sent_as="--fully-sharded-loras"
    )
    lora_target_modules: str | None = option(
        "names",
        "Modules that adapters may change: qkv_proj,o_proj [every linear layer].",
        sent_as="--lora-target-modules",
        write=_targets,
    )

    def __post_init__(self) -> None:
        """Raises UsageError for an unknown dtype, limits that can't be read, and limits of adapters that are off."""
        parse_media(self.limit_mm_per_prompt, self.mm_processor_kwargs)
        _engram(self.engram_config)
        self._check_adapters()
        check_word("--kv-cache-dtype", self.kv_cache_dtype, _CACHE_DTYPES)
        check_word("--mamba-ssm-cache-dtype", self.mamba_ssm_cache_dtype, DTYPES[:3])
        check_word("--performance-mode", self.performance_mode, _PERFORMANCE)

    def _check_adapters(self) -> None:
        names = ("max_loras", "max_lora_rank", "fully_sharded_loras", "lora_target_modules")
        given = next((name for name in names if getattr(self, name) not in (None, False)), None)
        if given is not None and not self.enable_lora:
            raise UsageError(f"--{given.replace('_', '-')} is for adapters, and they are off; add --enable-lora")
        if self.max_lora_rank is not None and self.max_lora_rank not in _RANKS:
            above = next((rank for rank in _RANKS if rank >= self.max_lora_rank), _RANKS[-1])
            raise UsageError(
                f"--max-lora-rank {self.max_lora_rank}: vLLM takes {', '.join(map(str, _RANKS))}; {above} holds "
                f"{'adapters of that rank' if above >= self.max_lora_rank else 'the largest'}"
            )

    @property
    def num_drafted(self) -> int:
        """Tokens drafted for each sequence of a step, by whatever drafts."""
        return self.num_speculative_tokens or self.num_ngram_tokens

    @cached_property
    def media(self) -> MediaLimits:
        """Images and videos of one prompt, as far as they are limited."""
        return parse_media(self.limit_mm_per_prompt, self.mm_processor_kwargs)

    @cached_property
    def ngram_tables_in_ram(self) -> bool:
        """Whether tables of n-grams lie in RAM, where vLLM puts them unless it is told otherwise."""
        return bool(_engram(self.engram_config).get("cpu_offload", True))

    @property
    def grows_weights(self) -> bool:
        """Whether the weights lie in segments that grow, which those of sleep mode's pools never do.

        Source: vllm 0.32 device_allocator/cumem.py, use_memory_pool (vllm#40812).
        """
        return self.expandable_segments and not self.enable_sleep_mode

    @property
    def adapters(self) -> Adapters | None:
        """What --enable-lora makes room for, with vLLM's defaults for what is not given; None without it."""
        if not self.enable_lora:
            return None
        defaults = Adapters()
        return Adapters(
            self.max_loras or defaults.max_loras,
            self.max_lora_rank or defaults.max_rank,
            self.fully_sharded_loras,
            _targets(self.lora_target_modules or "")[1:],
        )
