"""LoRA in vLLM: buffers that `--enable-lora` makes beside the model, for as many adapters as may run at once.

They are there whether an adapter is loaded or not, as large as --max-loras and --max-lora-rank allow: for every linear
layer that vLLM can adapt an A of [rank, inputs] and a B of [outputs, rank] per fused part (three of qkv_proj, two of
gate_up_proj), in the model's dtype. Over tensor-parallel ranks only the dimension that the layer itself splits is
split: A of qkv_proj and gate_up_proj and B of o_proj and down_proj are whole on every rank, unless
--fully-sharded-loras. Source: vllm 0.32, lora/layers/*.py: create_lora_weights; lora/model_manager.py:
_create_lora_modules; embedding_modules and packed_modules_mapping of the models.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from qserve.core.model_spec import ModelSpec
from qserve.core.tensors import dtype_bytes
from qserve.engines.vllm.plan.layouts import stage_layers
from qserve.engines.vllm.plan.options import Adapters, VllmOptions
from qserve.engines.vllm.plan.trial import Trial
from qserve.engines.vllm.plan.versions import VllmVersion
from qserve.planner.candidate import Candidate
from qserve.planner.memory.allocator import allocated_bytes
from qserve.planner.term import TermKind
from qserve.units import MIB, format_bytes

__all__ = [
    "FIRST_STAGE",
    "LAST_STAGE",
    "AdaptedModule",
    "AdapterBuffers",
    "adapted_modules",
    "adapter_sizes",
    "adapter_step_bytes",
    "module_bytes",
    "stage_adapters",
    "step_adapters",
]

FIRST_STAGE = ("embed_tokens",)
"""Modules that only the first pipeline stage has."""
LAST_STAGE = ("lm_head", "score")
"""Modules that only the last one has."""
_CACHE_BYTES = 2  # the step's dtype
_EXPERT_BLOCK = 64  # tokens of one expert are padded to whole blocks of the fused kernel


@dataclass(frozen=True)
class AdaptedModule:
    """`count` layers of one kind on one rank: `inputs` of A's columns, and B's rows of each fused part.

    `split` says which dimension the layer shares out over ranks; `experts` have adapters of their own.
    """

    name: str
    count: int
    inputs: int
    outputs: tuple[int, ...]
    split: Literal["column", "row", "none"] = "none"
    experts: int = 1


# Runtime modules and the names that adapters have for their parts: either may stand in --lora-target-modules.
_PARTS = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}


def adapted_modules(
    spec: ModelSpec, adapters: Adapters, version: VllmVersion, tensor_parallel_size: int = 1
) -> tuple[AdaptedModule, ...]:
    """Every module of the whole model that gets buffers, as one rank holds it; the encoders' get none."""
    found = _modules(spec, version, tensor_parallel_size)
    return tuple(module for module in found if module.count and _is_target(module.name, adapters.targets))


def module_bytes(
    module: AdaptedModule,
    adapters: Adapters,
    dtype: str,
    tensor_parallel_size: int = 1,
    round_blocks: bool = False,
    max_split_bytes: int | None = None,
) -> int:
    """Bytes of all `count` layers' buffers on one rank; `round_blocks` counts the CUDA allocator's blocks."""
    rank, ranks = adapters.max_rank, tensor_parallel_size
    a_rank = rank // ranks if adapters.fully_sharded and module.split == "column" else rank
    shared_rows = ranks if adapters.fully_sharded and module.split == "row" else 1
    shapes = [size for rows in module.outputs for size in (a_rank * module.inputs, rows // shared_rows * rank)]
    element = adapters.max_loras * module.experts * dtype_bytes(dtype)
    sizes = (size * element for size in shapes)
    if not round_blocks:
        return module.count * sum(sizes)
    return module.count * sum(allocated_bytes(size, max_split_bytes) for size in sizes)


def adapter_step_bytes(
    spec: ModelSpec, adapters: Adapters, version: VllmVersion, num_tokens: int, keeps_a_copy_per_adapter: bool
) -> int:
    """What adapters add to the peak of a step: rank × routed tokens of an expert's gate and up, beside its buffers.

    Of dense layers nothing: their fp32 buffers of tokens × rank are gone before SiLU's output is made, which is wider.
    `keeps_a_copy_per_adapter`: from Hopper on, where the kernel stores the tokens sorted by adapter.
    Source: vllm lora/ops/triton_ops/fused_moe_lora_op.py, a_intermediate_cache1.
    """
    moe = spec.moe
    if moe is None or not version.adapts_experts:
        return 0
    parts = 1 if _joins_gate_and_up(spec) else 2
    tokens = num_tokens * moe.num_experts_per_tok
    if keeps_a_copy_per_adapter:
        tokens = adapters.max_loras * (tokens + moe.num_experts * (_EXPERT_BLOCK - 1))
    return parts * tokens * adapters.max_rank * _CACHE_BYTES


def _joins_gate_and_up(spec: ModelSpec) -> bool:
    """Whether an expert's gate and up share one A. Source: is_3d_moe_weight of vLLM's multimodal sparse models."""
    return spec.moe is not None and spec.architecture.endswith("ForConditionalGeneration")


def _is_target(name: str, targets: tuple[str, ...]) -> bool:
    """Source: vllm lora/utils.py, is_in_target_modules: a part's name wraps the whole fused layer."""
    return not targets or name in targets or any(part in targets for part in _PARTS.get(name, ()))


def _modules(spec: ModelSpec, version: VllmVersion, ranks: int) -> Iterator[AdaptedModule]:
    yield from _attention(spec, ranks)
    yield from _linear_attention(spec, ranks)
    yield from _index_streams_and_tables(spec)
    sparse = spec.moe.sparse_layers if spec.moe else 0
    yield from _mlp(spec.hidden_size, spec.intermediate_size, spec.num_hidden_layers - sparse, ranks)
    yield from _experts(spec, version, ranks)
    vocab, hidden = spec.vocab_size, spec.hidden_size
    if spec.head.kind == "score":
        yield AdaptedModule("score", 1, hidden, (spec.head.num_labels,))
    since = spec.family.vllm.embedding_adapters
    if since is not None and version.release >= since:
        yield AdaptedModule("embed_tokens", 1, vocab, (hidden,))
        yield AdaptedModule("lm_head", int(spec.head.kind == "lm"), hidden, (vocab,))


def _attention(spec: ModelSpec, ranks: int) -> Iterator[AdaptedModule]:
    layers = spec.num_full_layers + spec.num_sliding_layers
    q_dim = spec.num_attention_heads * spec.head_dim
    kv_dim = max(1, spec.num_key_value_heads // ranks) * spec.head_dim
    gated = 2 * q_dim if spec.attn_output_gate else q_dim
    yield AdaptedModule("qkv_proj", layers, spec.hidden_size, (gated // ranks, kv_dim, kv_dim), "column")
    yield AdaptedModule("o_proj", layers, q_dim // ranks, (spec.hidden_size,), "row")


def _linear_attention(spec: ModelSpec, ranks: int) -> Iterator[AdaptedModule]:
    """Gated DeltaNet. Some families store its projections interleaved, as one part each."""
    linear, layers, hidden = spec.linear_attention, spec.num_linear_layers, spec.hidden_size
    if linear is None:
        return
    key, value, heads = linear.num_key_heads * linear.key_head_dim, linear.value_dim, linear.num_value_heads
    qkvz: tuple[int, ...] = (key, key, value, value)
    gates: tuple[int, ...] = (heads, heads)
    if spec.family.vllm.interleaves_linear:
        qkvz, gates = (sum(qkvz),), (sum(gates),)
    yield AdaptedModule("in_proj_qkvz", layers, hidden, tuple(size // ranks for size in qkvz), "column")
    yield AdaptedModule("in_proj_ba", layers, hidden, tuple(size // ranks for size in gates), "column")
    yield AdaptedModule("conv1d", layers, linear.conv_kernel_dim, (linear.conv_dim // ranks,), "column")
    yield AdaptedModule("out_proj", layers, value // ranks, (hidden,), "row")


def _index_streams_and_tables(spec: ModelSpec) -> Iterator[AdaptedModule]:
    """Whole on every rank. Source: vllm 0.32 models/qwen4_exp/nvidia: hyperconnection, ple_layer, indexer_qsa."""
    hidden = spec.hidden_size
    if spec.index:
        yield AdaptedModule("index_qk_proj", spec.num_full_layers, hidden, (spec.index.projected_dim,))
    if spec.ngrams:
        width = hidden * (spec.streams.count if spec.streams else 1)
        yield AdaptedModule("kv_proj", len(spec.ngrams.layers), spec.ngrams.embed_dim, (width, hidden))
    if spec.streams:
        width, rank, halves = spec.streams.count * hidden, spec.streams.low_rank, 2 * spec.num_hidden_layers
        gate = "input_mix_weight_down_block_inject"
        yield AdaptedModule(gate, halves, width, (rank, spec.streams.count))
        yield AdaptedModule("input_mix_weight_down", 1, width, (rank,))
        yield AdaptedModule("input_mix_weight_up", halves + 1, rank, (width,))


def _mlp(hidden: int, inner: int, layers: int, ranks: int) -> Iterator[AdaptedModule]:
    yield AdaptedModule("gate_up_proj", layers, hidden, (inner // ranks, inner // ranks), "column")
    yield AdaptedModule("down_proj", layers, inner // ranks, (hidden,), "row")


def _experts(spec: ModelSpec, version: VllmVersion, ranks: int) -> Iterator[AdaptedModule]:
    moe, hidden = spec.moe, spec.hidden_size
    if moe is None:
        return
    layers, count, shared = moe.sparse_layers, moe.num_experts, moe.shared_expert_intermediate_size
    yield AdaptedModule("gate", layers, hidden, (count,))
    if shared:
        yield from _mlp(hidden, shared, layers, ranks)
        yield AdaptedModule("shared_expert_gate", layers, hidden, (1,))
    if version.adapts_experts:
        inner = moe.moe_intermediate_size // ranks
        outputs = (2 * inner,) if _joins_gate_and_up(spec) else (inner, inner)
        yield AdaptedModule("experts", layers, hidden, outputs, "column", count)
        yield AdaptedModule("experts", layers, inner, (hidden,), "row", count)


def stage_adapters(candidate: Candidate, stage: int) -> int:
    """Bytes of the adapters' buffers on one rank of a pipeline stage; 0 without --enable-lora."""
    return sum(size for _, size in adapter_sizes(candidate, stage))


def step_adapters(candidate: Candidate, num_tokens: int) -> int:
    """What adapters add to the activation peak of a step of `num_tokens`."""
    adapters, card = candidate.request.of(VllmOptions).adapters, candidate.devices[0]
    if adapters is None:
        return 0
    is_hopper = (card.compute_capability or (9, 0)) >= (9, 0) and not candidate.on_cpu
    return adapter_step_bytes(candidate.spec, adapters, _version(candidate), num_tokens, is_hopper)


def adapter_sizes(candidate: Candidate, stage: int) -> Iterator[tuple[AdaptedModule, int]]:
    """Each module of a stage with the bytes of its buffers on one rank."""
    adapters, ranks = candidate.request.of(VllmOptions).adapters, candidate.tensor_parallel_size
    version = _version(candidate)
    if adapters is None:
        return
    most = 20 * MIB if version.limits_block_splits else None
    for module in adapted_modules(candidate.spec, adapters, version, ranks):
        part = _on_stage(candidate, module, stage)
        if part.count:
            yield part, module_bytes(part, adapters, candidate.dtype, ranks, not candidate.on_cpu, most)


def _on_stage(candidate: Candidate, module: AdaptedModule, stage: int) -> AdaptedModule:
    """The module's layers that lie on the stage."""
    layers = stage_layers(candidate.spec, candidate.pipeline_parallel_size)
    if module.name in FIRST_STAGE:
        return module if stage == 0 else replace(module, count=0)
    if module.name in LAST_STAGE:
        return module if stage == len(layers) - 1 else replace(module, count=0)
    return replace(module, count=round(module.count * layers[stage] / candidate.spec.num_hidden_layers))


def _version(candidate: Candidate) -> VllmVersion:
    return VllmVersion.parse(candidate.engine_version)


class AdapterBuffers(TermKind[Trial]):
    name, column = "LoRA adapters", "weights"

    def num_bytes(self, sizes: Trial, stage: int) -> int:
        return stage_adapters(sizes.candidate, stage)

    def formula(self, sizes: Trial, stage: int) -> str:
        adapters = sizes.options.adapters or Adapters()
        parts = ", ".join(
            f"{module.name} {format_bytes(size)}" for module, size in adapter_sizes(sizes.candidate, stage)
        )
        is_whole = sizes.candidate.tensor_parallel_size > 1 and not adapters.fully_sharded
        return (
            f"{adapters.max_loras} adapters × rank {adapters.max_rank} × (inputs + outputs) of every part of: {parts}"
            + ("; what the layer does not split over ranks is whole on each" if is_whole else "")
        )

    def source(self, sizes: Trial) -> str:
        return "vLLM 0.32, lora/layers/*.py: create_lora_weights"

    def band(self, sizes: Trial, num_bytes: int) -> tuple[int, int]:
        return int(num_bytes * 0.98), int(num_bytes * 1.02) + MIB
