"""The estimate of a transformers worker: on the CPU, on one card, or sharded over cards, RAM and disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from qserve.core.offload import can_stream
from qserve.core.release import parse_release
from qserve.core.schemes import SCHEMES
from qserve.core.tensors import Tensor
from qserve.engines.transformers.plan.constants import COMPILED_KERNEL, PYTHON_CPU, STRUCTURE_TRIAL, TORCH_WITH_CUDA
from qserve.engines.transformers.plan.device_map import DeviceBudget, Modules, PartialDeviceMap, place_modules
from qserve.engines.transformers.plan.graphs import graphs_held, num_captured
from qserve.engines.transformers.plan.loading import loading_of
from qserve.engines.transformers.plan.memory import (
    activation_bytes,
    exllama_scratch_bytes,
    fp8_experts_bytes,
    fp8_rows_bytes,
    generate_extra_bytes,
    int8_scratch_bytes,
    num_kernels,
    prefill_bytes,
    reader_bytes,
    returned_logits_bytes,
    rotary_tables_bytes,
    shortlist_bytes,
    unpacked_bytes,
)
from qserve.engines.transformers.plan.module_map import ModuleMap, overdrawn
from qserve.engines.transformers.plan.modules import modules_of
from qserve.engines.transformers.plan.options import TransformersOptions
from qserve.engines.transformers.plan.releases import POOL_SINCE
from qserve.engines.transformers.plan.schemes import holds_fp8
from qserve.errors import UsageError
from qserve.planner.calibrate import Corrections, corrections_for
from qserve.planner.calibration import CalibratedTerm
from qserve.planner.candidate import Candidate
from qserve.planner.constants import CUBLAS_WORKSPACE_AMPERE, CUBLAS_WORKSPACE_HOPPER, CUDA_CONTEXT_SINGLE, Constant
from qserve.planner.memory.kv import kv_bytes_per_token, kv_element_bytes, state_bytes
from qserve.planner.memory.weights import Loading, rank_weights

__all__ = ["NUM_READERS", "TransformersEstimate"]

# Of a card that is filled layer by layer, what torch's allocator leaves between blocks.
_USABLE_SHARE = 0.98
NUM_READERS = 2
"""One for small bodies, one for large ones while they come (`engines/transformers/worker/prompts/workers.py`)."""


@dataclass(frozen=True)
class TransformersEstimate:
    """One candidate at one workload. A pool of KV cache is reserved, states of hybrids included.

    `captures`: memory is kept for CUDA graphs of decoding steps, where the model has such (all of it on one card).
    """

    candidate: Candidate
    max_num_seqs: int
    max_num_batched_tokens: int
    captures: bool = True

    @cached_property
    def options(self) -> TransformersOptions:
        return self.candidate.request.of(TransformersOptions)

    @cached_property
    def corrections(self) -> Corrections:
        """What earlier runs measured of terms, as far as it holds here. Devices of one plan do the same step."""
        return corrections_for(self.candidate, self.max_num_seqs, self.max_num_batched_tokens)

    def _moved(self, term: CalibratedTerm, num_bytes: int) -> int:
        correction = self.corrections.get(term)
        return num_bytes if correction is None else correction.moved(num_bytes)

    @property
    def release(self) -> tuple[int, ...]:
        return parse_release(self.candidate.engine_version)

    @property
    def has_pool(self) -> bool:
        return self.release >= POOL_SINCE

    @cached_property
    def loading(self) -> Loading:
        return loading_of(self.candidate, has_pool=self.has_pool)

    @cached_property
    def weights_bytes(self) -> int:
        """All weights where they compute; what was learned is of one device each."""
        correction = self.corrections.get("weights")
        learned = correction.difference * len(self.candidate.devices) if correction else 0
        return rank_weights(self.candidate.spec, self.candidate.tensors, self.loading) + self.shortlist_bytes + learned

    @cached_property
    def shortlist_bytes(self) -> int:
        """Of `weights_bytes`, what a copy of the head takes that saves time, on a CPU."""
        candidate = self.candidate
        return shortlist_bytes(candidate.spec, candidate.dtype, candidate.hardware.cpu) if candidate.on_cpu else 0

    @cached_property
    def kv_token_bytes(self) -> int:
        return kv_bytes_per_token(
            self.candidate.spec, kv_element_bytes(self.candidate.kv_cache_dtype, self.candidate.dtype)
        )

    @cached_property
    def state_sequence_bytes(self) -> int:
        """Linear-attention state of one sequence: all kernel columns, the recurrent part in fp32."""
        spec = self.candidate.spec
        if spec.linear_attention is None:
            return 0
        return spec.num_linear_layers * state_bytes(spec.linear_attention, self.candidate.dtype, "float32", 1)

    def pool_bytes(self, num_tokens: int) -> int:
        """Cache of `num_tokens` tokens beside the states of every sequence."""
        return num_tokens * self.kv_token_bytes + self.max_num_seqs * self.state_sequence_bytes

    def tokens_of(self, pool_bytes: int) -> int:
        left = pool_bytes - self.max_num_seqs * self.state_sequence_bytes
        return max(0, left) // self.kv_token_bytes if self.kv_token_bytes else 0

    def activations_bytes(self, prompt_len: int, max_model_len: int) -> tuple[int, ...]:
        """Peak of a step on every device beside weights and cache, cuBLAS workspace included on a card.

        On a CPU with what requests leave beside it: compiled kernels, and the processes that read prompts.
        """
        return tuple(self._moved("activations", peak) for peak in self._peaks(prompt_len, max_model_len))

    def _peaks(self, prompt_len: int, max_model_len: int) -> tuple[int, ...]:
        spec, count = self.candidate.spec, len(self.candidate.devices)
        if self.has_pool or self.candidate.on_cpu:
            # A prompt that is scored is one row, however long; generation takes it in steps.
            longest = max_model_len if self.candidate.request.prompt_logprobs else 0
            tokens = max(self.max_num_batched_tokens, longest)
            sequences = min(self.max_num_seqs, self.max_num_batched_tokens)
            step = activation_bytes(spec, self.candidate.dtype, tokens, sequences)
            if self.candidate.on_cpu and self.candidate.quant.scheme == "bnb-int8":
                step += int8_scratch_bytes(spec, tokens)
            step += (
                max(self.unpacked_bytes, self.fp8_rows_bytes, self.fp8_experts_bytes)
                + self.kernels_bytes
                + self.readers_bytes
            )
            return (step + self.workspace.num_bytes,) * count
        fixed = self.workspace.num_bytes + exllama_scratch_bytes(spec, self.release)
        fixed += rotary_tables_bytes(spec, self.candidate.dtype, self.release) // count
        return tuple(fixed + step for step in self._generate_steps(prompt_len, max_model_len))

    @property
    def num_kernels(self) -> int:
        """That oneDNN keeps: on a CPU, for products in 16 bit."""
        is_compiled = self.candidate.on_cpu and self.candidate.dtype in ("bfloat16", "float16")
        return num_kernels(self.candidate.spec, self.max_num_batched_tokens) if is_compiled else 0

    @property
    def kernels_bytes(self) -> int:
        return self.num_kernels * COMPILED_KERNEL.num_bytes

    @property
    def readers_bytes(self) -> int:
        """Processes that read the bodies of requests, and one that tries structures; a reward worker has neither."""
        reads = self.candidate.on_cpu and self.candidate.spec.head.kind != "score"
        return NUM_READERS * reader_bytes(self.candidate.spec) + STRUCTURE_TRIAL.num_bytes if reads else 0

    def _generate_steps(self, prompt_len: int, max_model_len: int) -> list[int]:
        """Peak of one `generate` call per card: layers on each, the head on the last, its output on the first."""
        spec, dtype, count = self.candidate.spec, self.candidate.dtype, len(self.candidate.devices)
        token_bytes = self.kv_token_bytes // count
        whole = generate_extra_bytes(spec, dtype, self.release, prompt_len, max_model_len, token_bytes)
        body = prefill_bytes(spec, dtype, prompt_len) if count > 1 and self.release < (4, 50) else 0
        steps = [max(0, body - (max_model_len - prompt_len) * token_bytes)] * (count - 1) + [whole]
        if count > 1:
            steps[0] = max(steps[0], returned_logits_bytes(spec, self.release, prompt_len))
        return [self.max_num_seqs * step for step in steps]

    @property
    def workspace(self) -> Constant:
        """torch's cuBLAS workspace on the card."""
        if self.candidate.on_cpu:
            return Constant(0, 0, 0, "no cuBLAS on a CPU")
        capability = self.candidate.devices[0].compute_capability or (8, 0)
        return CUBLAS_WORKSPACE_HOPPER if capability >= (9, 0) else CUBLAS_WORKSPACE_AMPERE

    @property
    def runtime(self) -> Constant:
        """What belongs to no tensor; measured, nothing is left of its band."""
        base = CUDA_CONTEXT_SINGLE
        if self.candidate.on_cpu:
            has_cuda = self.candidate.hardware.torch_has_cuda
            base = PYTHON_CPU.plus(TORCH_WITH_CUDA) if has_cuda else PYTHON_CPU
        correction = self.corrections.get("runtime")
        if correction is None:
            return base
        num_bytes = correction.moved(base.num_bytes)
        return Constant(num_bytes, num_bytes, num_bytes, correction.source)

    @cached_property
    def num_graphs(self) -> int:
        return num_captured(self.candidate, self.max_num_seqs) if self.captures else 0

    @cached_property
    def graphs(self) -> Constant:
        """What CUDA graphs hold of the one card that holds the model."""
        layers, scratch = self.candidate.spec.num_hidden_layers, self.unpacked_bytes
        return graphs_held(self.num_graphs, layers, scratch, self.corrections.get("cuda_graphs"))

    @property
    def unpacked_bytes(self) -> int:
        """Of a weight in 8 or 4 bits, in 16 bit at once on a card: in a step, and again in the graphs."""
        is_ours = SCHEMES[self.candidate.quant.scheme].by_bitsandbytes or self._holds_fp8
        if self.candidate.on_cpu or not is_ours or not self.has_pool:
            return 0
        return unpacked_bytes(self.candidate.spec, self.candidate.dtype)

    @property
    def fp8_rows_bytes(self) -> int:
        """Of a step's rows, in fp8 beside weights in fp8."""
        if not self._holds_fp8 or not self.has_pool:
            return 0
        return fp8_rows_bytes(self.candidate.spec, self.candidate.dtype, self.max_num_batched_tokens)

    @property
    def fp8_experts_bytes(self) -> int:
        """Of a step's rows, between the products of experts in fp8."""
        if not self._holds_fp8 or not self.has_pool:
            return 0
        return fp8_experts_bytes(self.candidate.spec, self.candidate.dtype, self.max_num_batched_tokens)

    @property
    def _holds_fp8(self) -> bool:
        """Whether weights are in fp8 on the cards, stored so or made so while loading."""
        candidate = self.candidate
        return not candidate.on_cpu and holds_fp8(candidate.quant.scheme, candidate.devices)

    def left_bytes(self, activations_bytes: tuple[int, ...], share: float) -> int:
        """Bytes for weights and cache on all devices together, at `share` of what each has available."""
        capacities = self.capacities(activations_bytes, share)
        return sum(one for one in capacities if one > 0) or max(capacities)

    def capacities(self, activations_bytes: tuple[int, ...], share: float = 1.0) -> list[int]:
        """What weights and cache may take of each device; nothing of a card that --max-memory does not name."""
        return [
            self._allowed(index, int(device.available_bytes * share))
            - activations
            - self.runtime.num_bytes
            - self.graphs.num_bytes
            for index, (device, activations) in enumerate(zip(self.candidate.devices, activations_bytes, strict=True))
        ]

    def _allowed(self, place: int | str, available_bytes: int) -> int:
        limits = self.options.memory_limits
        if self.candidate.on_cpu and place == 0:
            place = "cpu"
        if limits is None or (place == "cpu" and place not in limits):
            return available_bytes
        return min(available_bytes, limits.get(place, 0))

    def modules(self, pool_bytes: int) -> Modules:
        """Embeddings, each layer with its part of the cache, and the head."""
        spec, modules = self.candidate.spec, self._modules_without_cache
        state = self.state_sequence_bytes * self.max_num_seqs
        attention = spec.num_full_layers + spec.num_sliding_layers
        cache = -(-max(0, pool_bytes - state) // attention) if attention else 0
        each_state = -(-state // spec.num_linear_layers) if spec.num_linear_layers else 0
        layers = (
            replace(layer, kv_cache_bytes=each_state if kind == "linear_attention" else cache)
            for layer, kind in zip(modules.layers, spec.layer_types, strict=True)
        )
        return replace(modules, layers=tuple(layers))

    @cached_property
    def _modules_without_cache(self) -> Modules:
        return modules_of(self.candidate.spec, self.candidate.tensors, self._bytes_of, self._offloaded_bytes_of)

    def _bytes_of(self, tensors: Iterable[Tensor]) -> int:
        return rank_weights(self.candidate.spec, tensors, self.loading)

    def _offloaded_bytes_of(self, tensors: Iterable[Tensor]) -> int:
        """bitsandbytes leaves what lies in RAM or on disk beside a card in 16 bit."""
        return rank_weights(self.candidate.spec, tensors, replace(self.loading, quantization=None, round_blocks=False))

    def placed(self, pool_bytes: int, activations_bytes: tuple[int, ...]) -> PartialDeviceMap | None:
        """Modules over the cards, then RAM and disk as far as the request allows; None when they don't fit."""
        cards, overflow = self._bins(activations_bytes)
        modules, device_map = self.modules(pool_bytes), self.options.device_map
        if isinstance(device_map, ModuleMap):
            placed = self._placed_by_hand(device_map, modules, cards)
            return None if overdrawn(placed, [*cards, *overflow]) else placed
        return place_modules(modules, cards, overflow, device_map or "auto", can_stream=self.can_stream)

    def overdrawn(
        self, pool_bytes: int, activations_bytes: tuple[int, ...]
    ) -> tuple[PartialDeviceMap, dict[int | str, int]] | None:
        """A map of the user's, and the bytes that it takes too much of each place; None where the planner places."""
        device_map = self.options.device_map
        if not isinstance(device_map, ModuleMap):
            return None
        cards, overflow = self._bins(activations_bytes)
        placed = self._placed_by_hand(device_map, self.modules(pool_bytes), cards)
        return placed, overdrawn(placed, [*cards, *overflow])

    @property
    def can_stream(self) -> bool:
        """Whether layers in RAM beside one card are copied to it one ahead (model/layer_stream.py)."""
        candidate = self.candidate
        is_served = self.has_pool and not candidate.on_cpu
        return is_served and can_stream(candidate.spec.architecture, SCHEMES[candidate.quant.scheme].bits)

    @property
    def why_no_offload(self) -> str | None:
        """Why nothing can be offloaded, where that is so (transformers 5.19, quantizer_bnb_4bit.py)."""
        in_flight, stored = self.candidate.in_flight, self.candidate.spec.quantization
        if in_flight is not None and self._holds_fp8:
            return "layers that are made fp8 while loading can't be offloaded; name a checkpoint in fp8"
        if stored is not None and SCHEMES[stored.scheme].by_bitsandbytes:
            return "transformers can't offload layers of a checkpoint that bitsandbytes quantized"
        if in_flight is not None and SCHEMES[in_flight.scheme].by_bitsandbytes and self.candidate.on_cpu:
            return "on a CPU, transformers can't offload layers of a model that bitsandbytes quantizes"
        return None

    def _placed_by_hand(self, device_map: ModuleMap, modules: Modules, cards: list[DeviceBudget]) -> PartialDeviceMap:
        names = [card.name for card in cards]
        placed = device_map.placed(modules, names, self.candidate.spec.tie_word_embeddings, can_stream=self.can_stream)
        if placed.offloaded and self.why_no_offload:
            raise UsageError(f"--device-map {device_map}: {self.why_no_offload}; offload none, or take --quant bf16")
        return placed

    def _bins(self, activations_bytes: tuple[int, ...]) -> tuple[list[DeviceBudget], list[DeviceBudget]]:
        """Where modules compute, and where they may be offloaded to."""
        hardware = self.candidate.hardware
        share = 1.0 if self.candidate.on_cpu or not self.has_pool else _USABLE_SHARE
        cards = [
            DeviceBudget(index, capacity) for index, capacity in enumerate(self.capacities(activations_bytes, share))
        ]
        overflow: list[DeviceBudget] = []
        if self.candidate.on_cpu:
            cards = [replace(cards[0], name="cpu")]
        elif self.options.offloads_to("cpu") and not self.why_no_offload:
            # A card that shares the RAM has all of it already.
            ram_bytes = 0 if self.candidate.devices[0].shares_ram else hardware.ram_for_models_bytes
            overflow.append(DeviceBudget("cpu", self._allowed("cpu", ram_bytes)))
        if self.options.offloads_to("disk") and not self.why_no_offload:
            # A safetensors checkpoint is read where it lies; only what has to be written anew takes room.
            overflow.append(DeviceBudget("disk", max(hardware.disk_free_bytes, self.weights_bytes)))
        return cards, overflow
