"""The account of a transformers worker: on the CPU, on one card, or sharded over cards, RAM and disk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from qserve.core.hardware import Device
from qserve.planner import constants
from qserve.planner.constants import Constant
from qserve.planner.device_map import Bin, Module, fill
from qserve.planner.explain import weights_formula
from qserve.planner.memory.kv import kv_bytes_per_token, kv_element_bytes, state_bytes
from qserve.planner.memory.transformers import (
    activation_bytes,
    exllama_scratch_bytes,
    generate_extra_bytes,
    prefill_bytes,
    returned_logits_bytes,
    rotary_tables_bytes,
)
from qserve.planner.memory.weights import Loading, rank_weights
from qserve.planner.plan import DeviceMap, DevicePlan, Term
from qserve.planner.setup import Setup
from qserve.planner.versions import parse_release

__all__ = ["Spread", "TransformersAccount"]

# From release 5 on the worker is qserve's own, with continuous batching over a pool; before, it is one `generate` call.
_POOL_SINCE = (5, 0)


@dataclass(frozen=True)
class TransformersAccount:
    """One setup at one workload. `pool_bytes` is the KV cache that is reserved, states of hybrids included."""

    setup: Setup
    max_num_seqs: int
    max_num_batched_tokens: int

    @property
    def release(self) -> tuple[int, ...]:
        return parse_release(self.setup.engine_version)

    @property
    def has_pool(self) -> bool:
        return self.release >= _POOL_SINCE

    @cached_property
    def loading(self) -> Loading:
        quantization = self.setup.in_flight
        fuses_experts = self.setup.spec.moe is not None and self.has_pool
        if quantization is not None and fuses_experts:
            # transformers 5 joins a layer's experts in one parameter, which bitsandbytes leaves in 16 bit
            # (bitsandbytes-foundation/bitsandbytes#1849).
            quantization = replace(quantization, skipped=(*quantization.skipped, ".experts."))
        return Loading(
            dtype=self.setup.dtype,
            quantization=quantization,
            fuse_experts=fuses_experts,
            round_blocks=not self.setup.on_cpu,
            untie_lm_head=not self.has_pool,  # transformers 4 kept an fp8 checkpoint's own lm_head
        )

    @cached_property
    def weights_bytes(self) -> int:
        return rank_weights(self.setup.spec, self.setup.tensors, self.loading)

    @cached_property
    def kv_token_bytes(self) -> int:
        element_bytes = kv_element_bytes(self.setup.request.kv_cache_dtype, self.setup.dtype)
        return kv_bytes_per_token(self.setup.spec, element_bytes)

    @cached_property
    def state_sequence_bytes(self) -> int:
        """Linear-attention state of one sequence: all kernel columns, the recurrent part in fp32."""
        spec = self.setup.spec
        if spec.linear_attention is None:
            return 0
        return spec.num_linear_layers * state_bytes(spec.linear_attention, self.setup.dtype, "float32", 1)

    def pool_bytes(self, num_tokens: int) -> int:
        """Cache of `num_tokens` tokens beside the states of every sequence."""
        return num_tokens * self.kv_token_bytes + self.max_num_seqs * self.state_sequence_bytes

    def tokens_of(self, pool_bytes: int) -> int:
        left = pool_bytes - self.max_num_seqs * self.state_sequence_bytes
        return max(0, left) // self.kv_token_bytes if self.kv_token_bytes else 0

    def activations_bytes(self, prompt_len: int, max_model_len: int) -> tuple[int, ...]:
        """Peak of a step on every device beside weights and cache, cuBLAS workspace included on a card."""
        spec, count = self.setup.spec, len(self.setup.devices)
        if self.has_pool or self.setup.on_cpu:
            rows = self.max_num_batched_tokens if self.setup.request.prompt_logprobs else self.max_num_seqs
            rows = min(rows, self.max_num_batched_tokens)
            step = activation_bytes(spec, self.setup.dtype, self.max_num_batched_tokens, rows)
            return (step + self.workspace.num_bytes,) * count
        fixed = self.workspace.num_bytes + exllama_scratch_bytes(spec, self.release)
        fixed += rotary_tables_bytes(spec, self.setup.dtype, self.release) // count
        return tuple(fixed + step for step in self._generate_steps(prompt_len, max_model_len))

    def _generate_steps(self, prompt_len: int, max_model_len: int) -> list[int]:
        """Peak of one `generate` call per card: layers on each, the head on the last, its output on the first."""
        spec, dtype, count = self.setup.spec, self.setup.dtype, len(self.setup.devices)
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
        if self.setup.on_cpu:
            return Constant(0, 0, 0, "no cuBLAS on a CPU")
        capability = self.setup.devices[0].compute_capability or (8, 0)
        is_hopper = capability >= (9, 0)
        return constants.CUBLAS_WORKSPACE_HOPPER if is_hopper else constants.CUBLAS_WORKSPACE_AMPERE

    @property
    def runtime(self) -> Constant:
        return constants.PYTHON_TRANSFORMERS_CPU if self.setup.on_cpu else constants.CUDA_CONTEXT_SINGLE

    def room(self, activations_bytes: tuple[int, ...], share: float) -> int:
        """Bytes for weights and cache on all devices together, at `share` of what each has available."""
        return sum(self._capacities(activations_bytes, share))

    def _capacities(self, activations_bytes: tuple[int, ...], share: float) -> list[int]:
        return [
            int(device.available_bytes * share) - activations - self.runtime.num_bytes
            for device, activations in zip(self.setup.devices, activations_bytes, strict=True)
        ]

    def modules(self, pool_bytes: int) -> list[Module]:
        """Embeddings, each layer with its part of the cache, and the head; layers are taken as alike."""
        embedding, head = self._role_bytes("embedding"), self._role_bytes("lm_head", "head")
        layers = self.setup.spec.num_hidden_layers
        layer = -(-(self.weights_bytes - embedding - head) // layers)
        cache = -(-pool_bytes // layers)
        names = [Module(f"model.layers.{i}", layer, cache) for i in range(layers)]
        tail = [Module("model.norm", 0), Module("model.rotary_emb", 0), Module("lm_head", head)]
        return [Module("model.embed_tokens", embedding), *names, *tail]

    def _role_bytes(self, *roles: str) -> int:
        picked = [tensor for tensor in self.setup.tensors if tensor.role in roles]
        return rank_weights(self.setup.spec, picked, self.loading)

    def spread(self, pool_bytes: int, activations_bytes: tuple[int, ...], share: float) -> Spread | None:
        """Modules over the cards, then RAM and disk as far as the request allows; None when they don't fit."""
        bins = [Bin(i, room) for i, room in enumerate(self._capacities(activations_bytes, share))]
        hardware, offload = self.setup.hardware, self.setup.request.offload
        if self.setup.on_cpu:
            bins = [replace(bins[0], name="cpu")]
        elif offload != "none":
            bins.append(Bin("cpu", int(hardware.ram_available_bytes * share)))
        if offload == "disk":
            bins.append(Bin("disk", max(hardware.disk_free_bytes, self.weights_bytes)))
        filled = fill(self.modules(pool_bytes), bins)
        return Spread(tuple((place.name, tuple(held)) for place, held in filled)) if filled else None

    def device(self, device: Device, weights: int, cache: int, activations: int) -> DevicePlan:
        """The account of one device."""
        held = weights + cache + activations + self.runtime.num_bytes
        return DevicePlan(
            name=device.name,
            total_bytes=device.total_bytes,
            weights_bytes=weights,
            kv_cache_bytes=cache,
            activations_bytes=activations,
            cuda_graphs_bytes=0,
            runtime_bytes=self.runtime.num_bytes,
            free_bytes=device.total_bytes - device.used_by_others_bytes - held,
            used_by_others_bytes=device.used_by_others_bytes,
            terms=self._terms(weights, cache, activations),
        )

    def _terms(self, weights: int, cache: int, activations: int) -> tuple[Term, ...]:
        setup, spec = self.setup, self.setup.spec
        counted = "safetensors headers" if setup.checkpoint.tensors else "dimensions of config.json"
        element = kv_element_bytes(setup.request.kv_cache_dtype, setup.dtype)
        layers = spec.num_full_layers + spec.num_sliding_layers
        formula = f"2 × {layers} layers × {spec.num_key_value_heads} KV heads × {spec.head_dim} × {element} B per token"
        state = f", and {self.state_sequence_bytes} B of state per sequence" if self.state_sequence_bytes else ""
        step = (
            f"2·T·(3I + 4H) with T={self.max_num_batched_tokens}, I={spec.intermediate_size}, H={spec.hidden_size}, "
            f"and logits of {self.max_num_seqs} sequences × {spec.vocab_size} × 6 B"
        )
        return (
            Term("weights", weights, weights_formula(setup), counted, weights, weights * 102 // 100),
            Term("KV cache", cache, formula + state, "config.json", cache, cache),
            Term(
                "activations",
                activations,
                step if self.has_pool else "what the prompt's peak exceeds the answer's cache by, and cuBLAS workspace",
                "transformers speed benchmarks of Qwen2 to Qwen3 (docs/memory.md)",
                activations // 2,
                activations * 3 // 2,
            ),
            Term(
                "runtime",
                self.runtime.num_bytes,
                "the Python process and its libraries" if setup.on_cpu else "CUDA context",
                self.runtime.source,
                self.runtime.low_bytes,
                self.runtime.high_bytes,
            ),
        )


@dataclass(frozen=True)
class Spread:
    """Which modules lie where, in order."""

    places: tuple[tuple[int | str, tuple[Module, ...]], ...]

    @property
    def names(self) -> list[int | str]:
        """Places that hold anything, in order."""
        return [name for name, modules in self.places if modules]

    @property
    def device_map(self) -> DeviceMap:
        return {module.name: name for name, modules in self.places for module in modules}

    def weights_on(self, name: int | str) -> int:
        return sum(module.weights_bytes for place, held in self.places if place == name for module in held)

    def cache_on(self, name: int | str) -> int:
        return sum(module.kv_cache_bytes for place, held in self.places if place == name for module in held)
