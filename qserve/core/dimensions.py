"""Every tensor of a model from its dimensions alone: the way to count a checkpoint that is not there.

Names and shapes are those of transformers' modules, so a real header table counts to the same bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from qserve.core.audio import audio_tensors
from qserve.core.model_spec import ModelSpec, VisionEncoder
from qserve.core.packing import is_packable, pack
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.schemes import SCHEMES
from qserve.core.tensors import Tensor, compact, dtype_bytes, role_of

__all__ = ["num_parameters", "tensors_of"]

_INDEX = re.compile(r"\.(?:layers|blocks)\.(0)\.")
_Shape = tuple[str, tuple[int, ...], int]
"""Name, shape, how many of it."""


def tensors_of(spec: ModelSpec) -> tuple[Tensor, ...]:
    """All tensors of the checkpoint as stored, MTP head and encoders included, tied lm_head left out."""
    plain = (_tensor(spec, name, shape, repeat) for name, shape, repeat in _shapes(spec) if repeat)
    if spec.quantization is None:
        return tuple(plain)
    if not spec.quantization.is_mixed:
        return tuple(pack(plain, spec.quantization))
    by_layer = (one for tensor in plain for one in _by_layer(tensor, spec, spec.quantization))
    return compact(pack(by_layer, spec.quantization))


def _tensor(spec: ModelSpec, name: str, shape: tuple[int, ...], repeat: int) -> Tensor:
    own = spec.ngrams.dtype if spec.ngrams and role_of(name) == "ngram_table" else None
    dtype = own or spec.dtype
    return Tensor(name, dtype, shape, math.prod(shape) * repeat * dtype_bytes(dtype), repeat)


def _by_layer(tensor: Tensor, spec: ModelSpec, quantization: CheckpointQuantization) -> Iterator[Tensor]:
    """A tensor of every layer once a layer, under its index, where it depends on the name how it is stored."""
    place = _INDEX.search(tensor.name)
    if place is None or not is_packable(tensor, quantization):
        yield tensor
        return
    layers = _layers_of(tensor, spec)
    for layer in layers:
        name = f"{tensor.name[: place.start(1)]}{layer}{tensor.name[place.end(1) :]}"
        yield Tensor(name, tensor.dtype, tensor.shape, tensor.nbytes // len(layers), tensor.repeat // len(layers))


def _layers_of(tensor: Tensor, spec: ModelSpec) -> tuple[int, ...]:
    """Indices of the layers that have this tensor. Which of them are sparse is only known where all are."""
    if tensor.role in ("vision", "audio", "mtp") or ".ple." in tensor.name:
        return tuple(range(tensor.repeat))
    indexed = tuple(enumerate(spec.layer_types))
    if ".linear_attn." in tensor.name:
        return tuple(index for index, kind in indexed if kind == "linear_attention")
    if ".self_attn." in tensor.name:
        return tuple(index for index, kind in indexed if kind != "linear_attention")
    sparse = spec.moe.sparse_layers if spec.moe else 0
    dense = len(indexed) - sparse
    is_of_a_sparse_layer = tensor.role in ("expert", "router") or ".shared_expert." in tensor.name
    return tuple(range(dense, len(indexed))) if is_of_a_sparse_layer else tuple(range(dense))


def num_parameters(spec: ModelSpec) -> int:
    """Logical parameters of all tensors, as model cards count them: no scales, a tied lm_head not twice."""
    plain = replace(spec, quantization=None)
    return sum(math.prod(shape) * repeat for _, shape, repeat in _shapes(plain))


def _shapes(spec: ModelSpec) -> Iterator[_Shape]:
    hidden = spec.hidden_size
    yield "model.embed_tokens.weight", (spec.vocab_size, hidden), 1
    yield from _attention(spec, "model.layers.0.self_attn", spec.num_full_layers + spec.num_sliding_layers)
    yield from _linear_attention(spec, "model.layers.0.linear_attn", spec.num_linear_layers)
    sparse = spec.moe.sparse_layers if spec.moe else 0
    yield from _mlp(spec, "model.layers.0.mlp", spec.num_hidden_layers - sparse)
    yield from _experts(spec, "model.layers.0.mlp", sparse)
    yield from _residuals(spec, "model.layers.0", spec.num_hidden_layers)
    yield from _last_norm(spec, "model", "norm")
    yield from _ngram_tables(spec)
    yield from _head(spec)
    yield from _mtp(spec)
    if spec.vision:
        yield from _vision(spec.vision)
    if spec.audio:
        yield from audio_tensors(spec.audio)


def _attention(spec: ModelSpec, prefix: str, layers: int) -> Iterator[_Shape]:
    q_dim = spec.num_attention_heads * spec.head_dim
    kv_dim = spec.num_key_value_heads * spec.head_dim
    gated_q_dim = 2 * q_dim if spec.attn_output_gate else q_dim  # the output gate comes out of q_proj as well
    hidden = spec.hidden_size
    yield f"{prefix}.q_proj.weight", (gated_q_dim, hidden), layers
    yield f"{prefix}.k_proj.weight", (kv_dim, hidden), layers
    yield f"{prefix}.v_proj.weight", (kv_dim, hidden), layers
    yield f"{prefix}.o_proj.weight", (hidden, q_dim), layers
    if spec.qkv_bias:
        yield f"{prefix}.q_proj.bias", (gated_q_dim,), layers
        yield f"{prefix}.k_proj.bias", (kv_dim,), layers
        yield f"{prefix}.v_proj.bias", (kv_dim,), layers
    if spec.output_bias:
        yield f"{prefix}.o_proj.bias", (hidden,), layers
    if spec.qk_norm:
        yield f"{prefix}.q_norm.weight", (spec.head_dim,), layers
        yield f"{prefix}.k_norm.weight", (spec.head_dim,), layers
    if spec.index:
        yield f"{prefix}.indexer.index_qk_proj.weight", (spec.index.projected_dim, hidden), layers
        yield f"{prefix}.indexer.q_layernorm.weight", (spec.index.head_dim,), layers
        yield f"{prefix}.indexer.k_layernorm.weight", (spec.index.head_dim,), layers


def _linear_attention(spec: ModelSpec, prefix: str, layers: int) -> Iterator[_Shape]:
    linear, hidden = spec.linear_attention, spec.hidden_size
    if linear is None:
        return
    yield f"{prefix}.in_proj_qkv.weight", (linear.conv_dim, hidden), layers
    yield f"{prefix}.in_proj_z.weight", (linear.value_dim, hidden), layers
    yield f"{prefix}.in_proj_b.weight", (linear.num_value_heads, hidden), layers
    yield f"{prefix}.in_proj_a.weight", (linear.num_value_heads, hidden), layers
    yield f"{prefix}.conv1d.weight", (linear.conv_dim, 1, linear.conv_kernel_dim), layers
    yield f"{prefix}.dt_bias", (linear.num_value_heads,), layers
    yield f"{prefix}.A_log", (linear.num_value_heads,), layers
    yield f"{prefix}.norm.weight", (linear.value_head_dim,), layers
    yield f"{prefix}.out_proj.weight", (hidden, linear.value_dim), layers


def _mlp(spec: ModelSpec, prefix: str, layers: int) -> Iterator[_Shape]:
    yield f"{prefix}.gate_proj.weight", (spec.intermediate_size, spec.hidden_size), layers
    yield f"{prefix}.up_proj.weight", (spec.intermediate_size, spec.hidden_size), layers
    yield f"{prefix}.down_proj.weight", (spec.hidden_size, spec.intermediate_size), layers


def _experts(spec: ModelSpec, prefix: str, layers: int) -> Iterator[_Shape]:
    moe, hidden = spec.moe, spec.hidden_size
    if moe is None:
        return
    experts = layers * moe.num_experts
    yield f"{prefix}.gate.weight", (moe.num_experts, hidden), layers
    yield f"{prefix}.experts.0.gate_proj.weight", (moe.moe_intermediate_size, hidden), experts
    yield f"{prefix}.experts.0.up_proj.weight", (moe.moe_intermediate_size, hidden), experts
    yield f"{prefix}.experts.0.down_proj.weight", (hidden, moe.moe_intermediate_size), experts
    if moe.shared_expert_intermediate_size:
        shared = moe.shared_expert_intermediate_size
        yield f"{prefix}.shared_expert.gate_proj.weight", (shared, hidden), layers
        yield f"{prefix}.shared_expert.up_proj.weight", (shared, hidden), layers
        yield f"{prefix}.shared_expert.down_proj.weight", (hidden, shared), layers
        yield f"{prefix}.shared_expert_gate.weight", (1, hidden), layers


def _residuals(spec: ModelSpec, prefix: str, layers: int) -> Iterator[_Shape]:
    """What stands before attention and MLP of each layer: a norm, or where there are streams a gate that mixes them."""
    if spec.streams is None:
        yield f"{prefix}.input_layernorm.weight", (spec.hidden_size,), 2 * layers
        return
    for half in ("attn", "mlp"):
        yield from _stream_gate(spec, f"{prefix}.{half}_hyper_connection", layers)
        width = spec.streams.count * spec.hidden_size
        yield f"{prefix}.{half}_hyper_connection.block_inject_weight.weight", (spec.streams.count, width), layers


def _last_norm(spec: ModelSpec, prefix: str, name: str) -> Iterator[_Shape]:
    """The norm before the head, or the gate that makes one stream of all."""
    if spec.streams is None:
        yield f"{prefix}.{name}.weight", (spec.hidden_size,), 1
    else:
        yield from _stream_gate(spec, f"{prefix}.hyper_connection_mixer", 1)


def _stream_gate(spec: ModelSpec, prefix: str, count: int) -> Iterator[_Shape]:
    if spec.streams is None:
        return
    width, rank = spec.streams.count * spec.hidden_size, spec.streams.low_rank
    yield f"{prefix}.hc_norm.weight", (width,), count
    yield f"{prefix}.input_mix_weight_down.weight", (rank, width), count
    yield f"{prefix}.input_mix_weight_up.weight", (width, rank), count


def _ngram_tables(spec: ModelSpec) -> Iterator[_Shape]:
    """Each table with what brings its rows into the streams; tables differ by some rows."""
    tables, hidden = spec.ngrams, spec.hidden_size
    if tables is None:
        return
    width = hidden * (spec.streams.count if spec.streams else 1)
    for layer, rows in zip(tables.layers, tables.rows, strict=True):
        prefix = f"model.layers.{layer}.ple"
        yield f"{prefix}.ple_embedding.ngram_embedding.weight", (rows, tables.head_dim), 1
        yield f"{prefix}.key_proj.weight", (width, tables.embed_dim), 1
        yield f"{prefix}.value_proj.weight", (hidden, tables.embed_dim), 1
        for norm in ("norm_key", "norm_query", "norm_conv"):
            yield f"{prefix}.{norm}.weight", (width,), 1
        yield f"{prefix}.conv1d.weight", (width, 1, tables.conv_kernel_dim), 1


def _head(spec: ModelSpec) -> Iterator[_Shape]:
    if spec.head.kind == "lm":
        # FP8 checkpoints carry an lm_head of their own even where the model ties it; engines differ in using it.
        if not spec.tie_word_embeddings or (spec.quantization and SCHEMES[spec.quantization.scheme].has_own_head):
            yield "lm_head.weight", (spec.vocab_size, spec.hidden_size), 1
        return
    if spec.head.guard_size:
        yield from _guard_heads(spec)
        return
    for _ in range(spec.head.hidden_layers):
        yield "score.0.weight", (spec.hidden_size, spec.hidden_size), 1
        yield "score.0.bias", (spec.hidden_size,), 1
    yield "score.weight", (spec.head.num_labels, spec.hidden_size), 1
    if spec.head.hidden_layers:
        yield "score.bias", (spec.head.num_labels,), 1


def _guard_heads(spec: ModelSpec) -> Iterator[_Shape]:
    """Levels of risk, and categories of answers and of questions. Source: the models' modeling_qwen3_guard.py."""
    size = spec.head.guard_size
    for prefix, categories in (("", 8), ("query_", 9)):
        yield f"{prefix}risk_level_category_pre.weight", (size, spec.hidden_size), 1
        yield f"{prefix}risk_level_category_layernorm.weight", (size,), 1
        yield f"{prefix}risk_level_head.weight", (3, size), 1
        yield f"{prefix}category_head.weight", (categories, size), 1


def _mtp(spec: ModelSpec) -> Iterator[_Shape]:
    layers = spec.mtp_layers
    if not layers:
        return
    yield from _mtp_fusion(spec)
    yield from _attention(spec, "mtp.layers.0.self_attn", layers)
    yield from _experts(spec, "mtp.layers.0.mlp", layers) if spec.moe else _mlp(spec, "mtp.layers.0.mlp", layers)
    yield from _residuals(spec, "mtp.layers.0", layers)


def _mtp_fusion(spec: ModelSpec) -> Iterator[_Shape]:
    """Token and hidden state side by side through one product, or where there are streams each through its own.

    Source: vllm 0.32 models/qwen4_exp/nvidia/mtp.py (fc_embedding, fc_hidden).
    """
    hidden = spec.hidden_size
    if spec.streams is None:
        yield "mtp.fc.weight", (hidden, 2 * hidden), 1
        yield "mtp.norm.weight", (hidden,), 3
        return
    yield "mtp.fc_embedding.weight", (hidden, hidden), 1
    yield "mtp.fc_hidden.weight", (hidden, hidden), 1
    yield "mtp.pre_fc_norm_embedding.weight", (hidden,), 1
    yield "mtp.pre_fc_norm_hidden.weight", (spec.streams.count * hidden,), 1
    yield from _last_norm(spec, "mtp", "norm")


def _vision(vision: VisionEncoder) -> Iterator[_Shape]:
    width, depth = vision.hidden_size, vision.depth
    patch = (width, vision.in_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size)
    yield "visual.patch_embed.proj.weight", patch, 1
    if vision.tower.positions:
        yield "visual.patch_embed.proj.bias", (width,), 1
        yield "visual.pos_embed.weight", (vision.num_position_embeddings, width), 1
    yield "visual.blocks.0.norm1.weight", (width,), _per_norm(vision) * 2 * depth
    yield "visual.blocks.0.attn.qkv.weight", (3 * width, width), depth
    yield "visual.blocks.0.attn.qkv.bias", (3 * width,), depth
    yield "visual.blocks.0.attn.proj.weight", (width, width), depth
    yield "visual.blocks.0.attn.proj.bias", (width,), depth
    yield from _vision_mlp(vision)
    yield from _merger(vision, "visual.merger", width, 1)
    merged = width * vision.spatial_merge_size**2
    yield from _merger(vision, "visual.deepstack_merger_list.0", merged, vision.deepstack_layers)


def _vision_mlp(vision: VisionEncoder) -> Iterator[_Shape]:
    width, depth, inner = vision.hidden_size, vision.depth, vision.intermediate_size
    inwards, outwards = vision.tower.mlp
    for name in inwards:
        yield f"visual.blocks.0.mlp.{name}.weight", (inner, width), depth
        yield f"visual.blocks.0.mlp.{name}.bias", (inner,), depth
    yield f"visual.blocks.0.mlp.{outwards}.weight", (width, inner), depth
    yield f"visual.blocks.0.mlp.{outwards}.bias", (width,), depth


def _per_norm(vision: VisionEncoder) -> int:
    """Tensors of one norm: weight, and with LayerNorm a bias."""
    return 1 if vision.tower.is_gated else 2


def _merger(vision: VisionEncoder, prefix: str, norm_width: int, count: int) -> Iterator[_Shape]:
    merged = vision.hidden_size * vision.spatial_merge_size**2
    norm, first, second = vision.tower.merger
    yield f"{prefix}.{norm}.weight", (norm_width,), _per_norm(vision) * count
    yield f"{prefix}.{first}.weight", (merged, merged), count
    yield f"{prefix}.{first}.bias", (merged,), count
    yield f"{prefix}.{second}.weight", (vision.out_hidden_size, merged), count
    yield f"{prefix}.{second}.bias", (vision.out_hidden_size,), count
