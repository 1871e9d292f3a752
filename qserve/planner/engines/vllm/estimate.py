"""The account of one vLLM rank: what the engine will hold, term by term, and what is left for the KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from qserve.core.hardware import Device
from qserve.core.quantization import CheckpointQuantization
from qserve.core.tensors import dtype_bytes
from qserve.planner.engines.vllm import constants
from qserve.planner.engines.vllm.adapters import stage_adapters, step_adapters
from qserve.planner.engines.vllm.constants import Constant
from qserve.planner.engines.vllm.explain import vllm_terms
from qserve.planner.engines.vllm.layouts import stage_layers
from qserve.planner.engines.vllm.loaded import loaded_blocks
from qserve.planner.engines.vllm.memory import activations as vllm
from qserve.planner.engines.vllm.memory import cpu as vllm_cpu
from qserve.planner.engines.vllm.memory.encoder import deepstack_bytes, longest_with_same_profile, profiled_tokens
from qserve.planner.engines.vllm.memory.pinned import Steps, cublas_workspace, pinned_copy_bytes
from qserve.planner.engines.vllm.memory.unpacked import unpacked_experts_bytes, unpacked_layer_bytes
from qserve.planner.engines.vllm.versions import VllmVersion
from qserve.planner.memory.kv import KvLayout, StateOptions, kv_element_bytes, kv_layout, kv_scale_bytes
from qserve.planner.plan import DevicePlan
from qserve.planner.setup import Setup
from qserve.units import GIB

__all__ = ["VllmAccount", "cuda_context"]

_CPU_BLOCK_TOKENS = 128


def cuda_context(setup: Setup) -> Constant:
    """Held on the card outside vLLM's own account."""
    if setup.on_cpu:
        return Constant(0, 0, 0, "no card")
    is_wide = setup.num_ranks > 1 and _fuses_all_reduce(setup)
    return constants.CUDA_CONTEXT_MULTI if is_wide else constants.CUDA_CONTEXT_SINGLE


def _fuses_all_reduce(setup: Setup) -> bool:
    """Data-centre cards from Hopper on; a described card without cc= is one by its 132 SMs and its memory."""
    device = setup.devices[0]
    is_described_hopper = device.sm_count == 132 and device.total_bytes >= 70 * GIB
    return is_described_hopper or device.compute_capability in ((9, 0), (10, 0), (10, 3))


@dataclass(frozen=True)
class VllmAccount:
    """One setup at one max_num_seqs, max_num_batched_tokens and max_model_len; everything else follows.

    The ranks of one stage are alike, so a stage is counted once; the KV cache is what the tightest rank can hold.
    """

    setup: Setup
    stage_weights: tuple[int, ...]
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    max_model_len: int

    @cached_property
    def version(self) -> VllmVersion:
        return VllmVersion.parse(self.setup.engine_version)

    @cached_property
    def layout(self) -> KvLayout:
        """Pages of one rank of one stage's share of the layers (whole model for a single stage)."""
        setup, request = self.setup, self.setup.request
        align = request.enable_prefix_caching
        if align is None:
            align = self.version.caches_prefixes_of_hybrids
        options = StateOptions(setup.dtype, request.mamba_ssm_cache_dtype, align, request.num_speculative_tokens)
        element_bytes = kv_element_bytes(request.kv_cache_dtype, setup.dtype)
        return kv_layout(
            setup.spec,
            element_bytes,
            options,
            setup.tensor_parallel_size,
            request.block_size or (_CPU_BLOCK_TOKENS if setup.on_cpu else None),
            kv_scale_bytes(request.kv_cache_dtype),
            self.max_num_batched_tokens,
        )

    @cached_property
    def activations_bytes(self) -> int:
        setup, request = self.setup, self.setup.request
        extra = vllm.prompt_logprobs_bytes(setup.spec, self.max_num_batched_tokens) if request.prompt_logprobs else 0
        extra += step_adapters(setup, self.max_num_batched_tokens)
        if setup.on_cpu:
            element = dtype_bytes(setup.dtype)
            steps = self.max_num_seqs, self.max_num_batched_tokens
            return extra + vllm_cpu.activation_bytes(setup.spec, *steps, element)
        return extra + vllm.activation_peak(
            setup.spec,
            setup.devices[0],
            self.version,
            self.max_num_seqs,
            self.max_num_batched_tokens,
            setup.tensor_parallel_size,
            encoder_tokens=self.encoder_tokens,
            compiles=self.compiles,
            is_eager=request.enforce_eager,
            drafts=request.num_speculative_tokens > 0,
            is_packed=self.is_packed and setup.spec.moe is None,
            unpacked_bytes=unpacked_layer_bytes(setup.spec, self.quantization, setup.tensor_parallel_size),
        )

    @cached_property
    def deepstack_bytes(self) -> int:
        """Features of the vision encoder's inner layers, for every token of a step; logged among the weights."""
        if self.setup.request.language_model_only:
            return 0
        return deepstack_bytes(self.setup.spec, self.max_num_batched_tokens)

    @cached_property
    def encoder_tokens(self) -> int:
        """Tokens of images or video that the vision encoder is profiled with; 0 where none are taken."""
        request = self.setup.request
        if request.language_model_only or request.skip_mm_profiling:
            return 0
        steps = self.max_num_seqs, self.max_num_batched_tokens
        return profiled_tokens(self.setup.spec, request.media, self.max_model_len, *steps)

    @property
    def longest_model_len(self) -> int:
        """The largest max_model_len that this account holds for: a longer one may profile a longer video."""
        request, spec = self.setup.request, self.setup.spec
        if not self.encoder_tokens:
            return spec.max_position_embeddings
        steps = self.max_num_seqs, self.max_num_batched_tokens
        return longest_with_same_profile(spec, request.media, self.max_model_len, *steps)

    @cached_property
    def adapter_bytes(self) -> tuple[int, ...]:
        """Buffers of LoRA adapters on a rank of each stage, which load with the weights and are logged among them."""
        return stage_adapters(self.setup)

    @property
    def compiles(self) -> bool:
        """Whether the start compiles: not with --enforce-eager, and not where it finds the code of an earlier one."""
        return not (self.setup.request.enforce_eager or self.setup.request.warm_compile_cache)

    @cached_property
    def repacking_bytes(self) -> int:
        """What packing for the CPU's kernels leaves beside the weights; 0 on a card."""
        if not self.setup.on_cpu:
            return 0
        spec, element = self.setup.spec, dtype_bytes(self.setup.dtype)
        return vllm_cpu.packed_bytes(spec, element) + vllm_cpu.heap_bytes(spec, element)

    @cached_property
    def cuda_graphs_bytes(self) -> int:
        if self.setup.request.enforce_eager or self.setup.on_cpu:
            return 0
        layers = max(stage_layers(self.setup.spec, self.setup.pipeline_parallel_size))
        plain = vllm.cuda_graph_bytes(self.setup.spec, self.version, self.captures, layers)
        if not self.setup.request.enable_lora:
            return self.unpacked_in_graphs + plain
        adapted = int(plain * constants.ADAPTER_GRAPHS)
        return self.unpacked_in_graphs + adapted + (plain if self.version.captures_without_adapters else 0)

    @property
    def unpacked_in_graphs(self) -> int:
        """Experts in 16 bit, once: graphs share a pool of their own, which holds the largest that one of them needs."""
        return unpacked_experts_bytes(self.setup.spec, self.quantization, self.setup.tensor_parallel_size)

    @property
    def captures(self) -> vllm.Captures:
        """Off data-centre cards FlashInfer serves an fp8 cache, and captures no step of several drafted tokens."""
        request = self.setup.request
        drafts, largest = request.num_speculative_tokens, request.max_cudagraph_capture_size
        only = drafts > 0 and request.kv_cache_dtype.startswith("fp8") and not _fuses_all_reduce(self.setup)
        return vllm.Captures(self.max_num_seqs, self.max_num_batched_tokens, drafts, only, largest)

    @cached_property
    def subtracts_cuda_graphs(self) -> bool:
        """Whether this release takes this model's graphs from the KV cache."""
        return self.version.subtracts_cuda_graphs(self.setup.spec)

    @cached_property
    def penalty_bytes(self) -> int:
        """What the second model runner keeps for penalties, beside the weights; 0 on a CPU."""
        return 0 if self.setup.on_cpu else vllm.penalty_bytes(self.setup.spec, self.version, self.max_num_seqs)

    @cached_property
    def non_torch(self) -> Constant:
        if self.setup.on_cpu:
            return constants.PYTHON_VLLM_CPU
        spec, card = self.setup.spec, self.setup.devices[0]
        fuses = _fuses_all_reduce(self.setup)
        kept = self.penalty_bytes if self.version.charges_what_is_gone else 0
        if card.is_integrated:
            base = constants.NON_TORCH_INTEGRATED
        elif self.penalty_bytes and (self.setup.num_ranks == 1 or not (spec.is_hybrid or fuses)):
            base = constants.non_torch_v2(self.version.release, spec.is_hybrid)
            kept += cublas_workspace(card) if self.version.charges_what_is_gone else 0
        else:
            ranks, capability = self.setup.num_ranks, card.compute_capability
            base = constants.non_torch(self.version.release, ranks, fuses, spec.is_hybrid, capability)
        return Constant(base.num_bytes + kept, base.low_bytes + kept, base.high_bytes + kept, base.source)

    @property
    def is_packed(self) -> bool:
        """Whether the layers' linears are no products for cuBLAS, as they are packed; bitsandbytes unpacks for it."""
        found = self.quantization
        return found is not None and not found.scheme.startswith("bnb")

    @property
    def quantization(self) -> CheckpointQuantization | None:
        """How the linear layers are held: as stored, or as made while loading."""
        return self.setup.spec.quantization or self.setup.in_flight

    @cached_property
    def kept_buffers_bytes(self) -> int:
        """What fused experts and top-k keep to work in, where the release charges it as gone and not in the peak."""
        setup, version = self.setup, self.version
        if setup.on_cpu or not version.charges_what_is_gone:
            return 0
        tokens, ranks = self.max_num_batched_tokens, setup.tensor_parallel_size
        experts = vllm.moe_workspace(setup.spec, version, tokens, ranks)
        return experts + vllm.sampler_buffer(setup.spec, setup.devices[0], version, self.max_num_seqs)

    @property
    def uncharged_bytes(self) -> int:
        """Counts for penalties where the account of the release overlooks them: held, but not taken from the cache."""
        return 0 if self.version.charges_what_is_gone else self.penalty_bytes

    @cached_property
    def pinned_bytes(self) -> int:
        """The embedding's copy of a first start, where it stays on the card and is charged."""
        setup, spec = self.setup, self.setup.spec
        tokens, ranks = self.max_num_batched_tokens, setup.tensor_parallel_size
        pins = self.version.pins_freed_segments and self.compiles and not setup.on_cpu
        if not pins or not vllm.compile_peak(spec, self.version, tokens, ranks):
            return 0
        steps = Steps(self.max_num_seqs, tokens, ranks, self.is_packed)
        return pinned_copy_bytes(spec, setup.devices[0], steps, loaded_blocks(setup))

    @property
    def context(self) -> Constant:
        return cuda_context(self.setup)

    def kv_budget(self, device: Device, weights_bytes: int) -> int:
        """Bytes left for the KV cache on one rank; negative where the model alone is too much.

        requested = total · gpu_memory_utilization; less weights, activation peak, non-torch, and from 0.21 on graphs.
        """
        fixed = self.setup.request.kv_cache_memory_bytes
        if fixed is not None:
            return fixed
        requested = int(device.total_bytes * self.gpu_memory_utilization)
        charged = weights_bytes + self.activations_bytes + self.non_torch.num_bytes + self.repacking_bytes
        charged += self.pinned_bytes + self.kept_buffers_bytes
        if self.setup.on_cpu:
            length = self.setup.request.max_model_len or self.setup.spec.max_position_embeddings
            return vllm_cpu.cache_bytes(requested - charged, self.layout.bytes_per_sequence(length))
        return requested - charged - (self.cuda_graphs_bytes if self.subtracts_cuda_graphs else 0)

    @cached_property
    def cache_bytes(self) -> int:
        """KV cache of the tightest rank."""
        return min(self.kv_budget(device, self.held_weights(stage)) for device, stage in self._ranks())

    @cached_property
    def whole_model_cache_bytes(self) -> int:
        """`cache_bytes` scaled to all layers: a stage holds only its own layers' share of a block."""
        layers = max(stage_layers(self.setup.spec, self.setup.pipeline_parallel_size))
        return self.cache_bytes * self.setup.spec.num_hidden_layers // layers

    @property
    def max_tokens_of_one_sequence(self) -> int:
        return self.layout.max_tokens_of_one_sequence(self.whole_model_cache_bytes)

    def max_concurrency(self, max_model_len: int) -> float:
        return self.layout.max_concurrency(self.whole_model_cache_bytes, max_model_len)

    def logged_tokens(self, max_model_len: int) -> int:
        """What this release logs as "GPU KV cache size"."""
        blocks = self.layout.num_blocks(self.whole_model_cache_bytes)
        if not self.setup.spec.is_hybrid:
            return blocks * self.layout.block_tokens
        if self.version.logs_tokens_from_concurrency:
            return int(self.max_concurrency(max_model_len) * max_model_len)
        return blocks // self.layout.num_groups * self.layout.block_tokens

    @property
    def slack_bytes(self) -> int:
        """Before 0.21 graphs and context came out of what the share left over: how far they may be less than expected.

        So it is under the second model runner up to 0.28. Logs of those releases started with less left than the
        expected figures need.
        """
        if self.subtracts_cuda_graphs:
            return 0
        return self.context.num_bytes - self.context.low_bytes + self.cuda_graphs_bytes // 2

    @cached_property
    def least_free_bytes(self) -> int:
        """What the fullest card has left; negative where the plan overdraws it."""
        return min(self._free_bytes(device, stage) for device, stage in self._ranks())

    def devices(self) -> tuple[DevicePlan, ...]:
        """The account of every rank, with each term explained."""
        return tuple(self._device(device, stage) for device, stage in self._ranks())

    def held_weights(self, stage: int) -> int:
        """Weights of a rank of the stage, with what the model allocates for steps and adapters when it loads."""
        return self.stage_weights[stage] + self.deepstack_bytes + self.adapter_bytes[stage]

    def _ranks(self) -> list[tuple[Device, int]]:
        """Card and pipeline stage of every rank, stage by stage."""
        ranks, devices = self.setup.tensor_parallel_size, self.setup.devices
        return [(device, index // ranks) for index, device in enumerate(devices)]

    @property
    def _runtime_bytes(self) -> int:
        kept = self.uncharged_bytes + self.pinned_bytes + self.kept_buffers_bytes
        return self.non_torch.num_bytes + self.context.num_bytes + self.repacking_bytes + kept

    def _free_bytes(self, device: Device, stage: int) -> int:
        held = self.held_weights(stage) + max(0, self.cache_bytes) + self.activations_bytes + self.cuda_graphs_bytes
        return device.total_bytes - device.used_by_others_bytes - held - self._runtime_bytes

    def _device(self, device: Device, stage: int) -> DevicePlan:
        return DevicePlan(
            name=device.name,
            total_bytes=device.total_bytes,
            weights_bytes=self.held_weights(stage),
            kv_cache_bytes=max(0, self.cache_bytes),
            activations_bytes=self.activations_bytes,
            cuda_graphs_bytes=self.cuda_graphs_bytes,
            runtime_bytes=self._runtime_bytes,
            free_bytes=self._free_bytes(device, stage),
            used_by_others_bytes=device.used_by_others_bytes,
            terms=vllm_terms(self, device, stage),
        )
