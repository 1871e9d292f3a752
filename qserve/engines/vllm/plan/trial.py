"""The sizes at which one vLLM candidate is tried, and what follows from them before any bytes are counted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from qserve.core.hardware import Device
from qserve.core.model_spec import ModelSpec
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.schemes import SCHEMES
from qserve.engines.vllm.plan import constants
from qserve.engines.vllm.plan.backends import (
    captures_drafts,
    fuses_all_reduce,
    is_datacenter_blackwell,
    runs_flash_attention_3,
    runs_flashinfer,
)
from qserve.engines.vllm.plan.encoder import (
    NO_ITEMS,
    ProfiledItems,
    longest_with_same_profile,
    profiled_items,
    takes_media,
)
from qserve.engines.vllm.plan.layouts import stage_layers
from qserve.engines.vllm.plan.options import VllmOptions
from qserve.engines.vllm.plan.versions import VllmVersion
from qserve.planner.candidate import Candidate
from qserve.planner.constants import CUDA_CONTEXT_SINGLE, Constant
from qserve.planner.memory.kv import KvLayout, StateOptions, kv_element_bytes, kv_layout, kv_scale_bytes

__all__ = ["Captures", "Trial", "cuda_context", "penalty_bytes"]

_CPU_BLOCK_TOKENS = 128


def cuda_context(candidate: Candidate) -> Constant:
    """Held on the card outside vLLM's own account."""
    if candidate.on_cpu:
        return Constant(0, 0, 0, "no card")
    is_wide = candidate.num_ranks > 1 and fuses_all_reduce(candidate)
    return constants.CUDA_CONTEXT_MULTI if is_wide else CUDA_CONTEXT_SINGLE


@dataclass(frozen=True)
class Captures:
    """Which graphs vLLM captures: what fixes their sizes, and whether whole decode steps are captured as well."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_speculative_tokens: int = 0
    piecewise_only: bool = False
    largest_asked: int | None = None
    largest_by_default: int = 512
    is_fine: bool = False
    fits_decode: bool = False

    @property
    def num_modes(self) -> int:
        return 1 if self.piecewise_only else 2

    @property
    def largest(self) -> int:
        """Tokens of the largest piecewise graph: min(2·S·(1 + k), 512) for k drafted tokens.

        --max-cudagraph-capture-size takes the place of that minimum; data-centre Blackwell's is 1024.
        """
        by_sequences = min(2 * self._decode, self.largest_by_default)
        return min(self.largest_asked or by_sequences, self.max_num_batched_tokens)

    @property
    def largest_full(self) -> int:
        """Tokens of the largest graph of a whole decode step, S·(1 + k) at most; 0 where none is captured."""
        return 0 if self.piecewise_only else min(self.largest, self._decode)

    @property
    def num_graphs(self) -> int:
        """Piecewise ones at every size, and whole decode steps at the sizes rounded up to whole sequences of 1 + k.

        Source: vllm VllmConfig._set_cudagraph_sizes; of drafts "PIECEWISE: 49/49, FULL: 31/31" with four (vllm#49547).
        """
        return _num_graphs(self)

    def sizes(self) -> set[int]:
        """1, 2, 4, then steps of 8, of 16 from 256; `is_fine` (--performance-mode interactivity): every one up to 32.

        `fits_decode`: also a step of all tokens, and of all sequences; with drafts of 1 + k tokens of as many sequences
        as the sizes have tokens. Source: vllm 0.32 VllmConfig._set_cudagraph_sizes.
        """
        smallest, largest = range(1, 33) if self.is_fine else (1, 2, 4), self.largest
        steps = {*smallest, *range(8, 256, 8), *range(256, largest + 1, 16)}
        if self.fits_decode:
            steps |= {self.max_num_batched_tokens, *self._decode_sizes()}
        return {size for size in steps if size <= largest}

    def _decode_sizes(self) -> set[int]:
        """None of them where the largest size was asked for."""
        if self.largest_asked is not None:
            return set()
        most = min(self.max_num_seqs, self.largest_by_default)
        if not self.num_speculative_tokens:
            return {self.max_num_seqs}
        counts = {1, 2, 4, *range(8, min(most + 1, 256), 8), *range(256, most + 1, 16), most}
        return {count * (1 + self.num_speculative_tokens) for count in counts if count <= most}

    @property
    def _decode(self) -> int:
        return self.max_num_seqs * (1 + self.num_speculative_tokens)


@lru_cache(maxsize=4096)  # hundreds of trials of one search capture the same
def _num_graphs(captures: Captures) -> int:
    each, sizes = 1 + captures.num_speculative_tokens, captures.sizes()
    whole = {-(-size // each) * each for size in sizes} if captures.largest_full else set()
    return len(sizes) + sum(size <= captures.max_num_seqs * each for size in whole)


def penalty_bytes(spec: ModelSpec, version: VllmVersion, max_num_seqs: int) -> int:
    """The second model runner's counts of every sequence's tokens: S·V·4, and a bit each for the prompt's.

    Source: vllm v1/worker/gpu/sample/penalties.py; on every rank, whole.
    """
    if spec.head.kind == "score" or not version.runs_model_runner_v2(spec):
        return 0
    return max_num_seqs * (4 * spec.vocab_size + 4 * -(-spec.vocab_size // 32))


@dataclass(frozen=True)
class Trial:
    """One candidate at one max_num_seqs, max_num_batched_tokens, share of the card and max_model_len.

    `stage_weights` are the loaded bytes of one rank of each pipeline stage, the same at all sizes. `keeps_margin`: what
    uncertain terms may take beyond the expected is left free; `keeps_sampling`: so is what a sampled step may take.
    """

    candidate: Candidate
    stage_weights: tuple[int, ...]
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    max_model_len: int
    keeps_margin: bool = True
    keeps_sampling: bool = True

    @property
    def spec(self) -> ModelSpec:
        return self.candidate.spec

    @property
    def device(self) -> Device:
        """The card of the first rank; the others are alike."""
        return self.candidate.devices[0]

    @cached_property
    def options(self) -> VllmOptions:
        return self.candidate.request.of(VllmOptions)

    @cached_property
    def version(self) -> VllmVersion:
        is_able = (self.device.compute_capability or (0, 0)) >= (8, 0)
        has_flashinfer = is_able and "flashinfer-python" in (self.candidate.hardware.packages or ())
        return replace(VllmVersion.parse(self.candidate.engine_version), has_flashinfer=has_flashinfer)

    @property
    def samples_by_flashinfer(self) -> bool:
        """Whether a start of ours samples by FlashInfer: where its kernels are installed compiled."""
        return "flashinfer-jit-cache" in (self.candidate.hardware.packages or ())

    @property
    def joins_worker(self) -> bool:
        """Whether, on a CPU, the model computes in the engine's process."""
        candidate = self.candidate
        return candidate.on_cpu and self.version.joins_worker_on_cpu(candidate.num_ranks, candidate.hardware.numa_nodes)

    @cached_property
    def layout(self) -> KvLayout:
        """Pages of one rank of one stage's share of the layers (whole model for a single stage)."""
        candidate, options = self.candidate, self.options
        align = options.enable_prefix_caching
        if align is None:
            align = self.version.caches_prefixes_of_hybrids
        states = StateOptions(candidate.dtype, options.mamba_ssm_cache_dtype, align, options.num_speculative_tokens)
        element_bytes = kv_element_bytes(candidate.kv_cache_dtype, candidate.dtype)
        return kv_layout(
            candidate.spec,
            element_bytes,
            states,
            candidate.tensor_parallel_size,
            options.block_size or (_CPU_BLOCK_TOKENS if candidate.on_cpu else None),
            kv_scale_bytes(candidate.kv_cache_dtype),
            self.max_num_batched_tokens,
        )

    @cached_property
    def most_layers(self) -> int:
        """Layers of the pipeline stage that has most of them."""
        return max(stage_layers(self.spec, self.candidate.pipeline_parallel_size))

    @property
    def takes_media(self) -> bool:
        """Whether a request may bring images, video or audio; the engine then gets embeddings instead of token ids."""
        return not self.options.language_model_only and takes_media(self.spec, self.options.media)

    @cached_property
    def profiled_items(self) -> ProfiledItems:
        """What an encoder is profiled with."""
        if self.options.language_model_only or self.options.skip_mm_profiling:
            return NO_ITEMS
        steps = self.max_num_seqs, self.max_num_batched_tokens
        return profiled_items(self.spec, self.options.media, self.max_model_len, *steps)

    @property
    def longest_model_len(self) -> int:
        """The largest max_model_len that these sizes hold for: a longer one may profile a longer video."""
        if not self.profiled_items.count:
            return self.spec.max_position_embeddings
        steps = self.max_num_seqs, self.max_num_batched_tokens
        return longest_with_same_profile(self.spec, self.options.media, self.max_model_len, *steps)

    @property
    def compiles(self) -> bool:
        """Whether the start compiles: not with --enforce-eager, and not where it finds the code of an earlier one."""
        return not (self.options.enforce_eager or self.options.warm_compile_cache)

    @property
    def drafts(self) -> bool:
        return self.options.num_drafted > 0

    @property
    def is_eager(self) -> bool:
        """Whether steps run without compiled code."""
        return self.options.enforce_eager or self.version.is_v0_engine(self.device.compute_capability)

    @cached_property
    def captures(self) -> Captures:
        """With drafts whole decode steps only where attention captures several tokens of a sequence."""
        drafts, largest = self.options.num_drafted, self.options.max_cudagraph_capture_size
        only = drafts > 0 and not captures_drafts(self.candidate, self.version)
        default = self.version.largest_capture(is_datacenter_blackwell(self.device))
        is_fine = self.options.performance_mode == "interactivity"
        fits = self.version.captures_decode_sizes
        return Captures(self.max_num_seqs, self.max_num_batched_tokens, drafts, only, largest, default, is_fine, fits)

    @property
    def runs_flashinfer(self) -> bool:
        return runs_flashinfer(self.candidate)

    @property
    def runs_flash_attention_3(self) -> bool:
        return runs_flash_attention_3(self.candidate) and not self.runs_flashinfer

    @cached_property
    def subtracts_cuda_graphs(self) -> bool:
        """Whether this release takes this model's graphs from the KV cache."""
        return self.version.subtracts_cuda_graphs(self.spec)

    @cached_property
    def penalty_bytes(self) -> int:
        """What the second model runner keeps for penalties, beside the weights; 0 on a CPU."""
        return 0 if self.candidate.on_cpu else penalty_bytes(self.spec, self.version, self.max_num_seqs)

    @property
    def quantization(self) -> CheckpointQuantization | None:
        """How the linear layers are held: as stored, or as made while loading."""
        return self.spec.quantization or self.candidate.in_flight

    @property
    def has_fp4_experts(self) -> bool:
        """NVFP4 experts: their kernels' buffers and modules are read in no source, only in logs."""
        return self.has_fp4_kernels and self.spec.moe is not None

    @property
    def has_fp4_kernels(self) -> bool:
        return self.quantization is not None and self.quantization.scheme == "nvfp4"

    @property
    def is_packed(self) -> bool:
        """Whether the layers' linears are no products for cuBLAS, as they are packed; bitsandbytes unpacks for it."""
        found = self.quantization
        return found is not None and not SCHEMES[found.scheme].by_bitsandbytes
