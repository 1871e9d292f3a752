"""What one rank computes of a model: its matrix products, attention heads, experts and recurrent states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from qserve.core.model_spec import ModelSpec
from qserve.core.quantization.weight_format import BF16, WeightFormat
from qserve.planner.speed.terms.held import HeldFormats

__all__ = ["GATE_BYTES", "NORM_BYTES", "NORM_WITH_SUM_BYTES", "Gemm", "RankNetwork", "rank_network"]


# Read and written for each element, counted in vLLM 0.32 (ir/ops/layernorm.py, SiluAndMul.forward_native): to 32 bit,
# squares, their mean, times its root, back to 16 bit, times the weight; a residual that is added and kept: 24 more.
NORM_BYTES = 36
NORM_WITH_SUM_BYTES = 60
GATE_BYTES = 10


@dataclass(frozen=True)
class Gemm:
    """A product that occurs `count` times in a forward pass: weights of `rows` by `columns`."""

    rows: int
    columns: int
    count: int
    weights: WeightFormat


@dataclass(frozen=True)
class RankNetwork:
    """A rank's share of a forward pass. Heads, experts' columns and rows of the vocabulary are divided by `ranks`."""

    hidden_size: int
    num_layers: int
    ranks: int
    gemms: tuple[Gemm, ...]
    lm_head: Gemm
    heads: int
    kv_heads: int
    head_dim: int
    attention_layers: int
    sliding_layers: int = 0
    sliding_window: int = 0
    moe_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    weights_per_expert: int = 0
    expert_format: WeightFormat = BF16
    state_layers: int = 0
    value_heads: int = 0
    streams: int = 1
    """Residual streams, which two gates a layer read and write whole."""
    unfused_bytes: int = 0
    """That norms and gates move of one token's activations through all layers where each is several operations, in 32
    bit for the most part."""

    @property
    def linear_weights(self) -> int:
        """Weights of every product and expert of this rank, without the head."""
        products = sum(gemm.rows * gemm.columns * gemm.count for gemm in self.gemms)
        return products + self.moe_layers * self.experts * self.weights_per_expert


def rank_network(
    spec: ModelSpec, weights: WeightFormat, ranks: int = 1, others: Mapping[str, WeightFormat] | None = None
) -> RankNetwork:
    """The share of one of `ranks` tensor-parallel cards; heads that are fewer than ranks are held by several.

    `weights` is the format of the scheme that most modules are stored in, `others` have those that a checkpoint mixes
    in, by scheme.
    """
    held = HeldFormats(spec, weights, others or {})
    attending = [layer for layer, kind in enumerate(spec.layer_types) if kind != "linear_attention"]
    hidden = spec.hidden_size
    heads, kv_heads = _share(spec.num_attention_heads, ranks), _share(spec.num_key_value_heads, ranks)
    queries = heads * spec.head_dim * (2 if spec.attn_output_gate else 1)
    gemms = [
        *_gemms(held, "self_attn.q_proj", attending, queries + 2 * kv_heads * spec.head_dim, hidden),
        *_gemms(held, "self_attn.o_proj", attending, hidden, heads * spec.head_dim),
        *_mlp(spec, held, ranks),
        *_linear_attention(spec, held, ranks),
        *_whole_on_each_rank(spec),
    ]
    moe, linear = spec.moe, spec.linear_attention
    return RankNetwork(
        hidden_size=hidden,
        num_layers=spec.num_hidden_layers,
        ranks=ranks,
        gemms=tuple(gemm for gemm in gemms if gemm.count and gemm.rows and gemm.columns),
        lm_head=Gemm(_share(spec.vocab_size, ranks), hidden, 1, held.of_head),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=spec.head_dim,
        attention_layers=0 if spec.index else spec.num_full_layers,
        # What an index chooses is read as a window is: never more than so many tokens of a sequence.
        sliding_layers=spec.num_full_layers if spec.index else spec.num_sliding_layers,
        sliding_window=spec.index.chosen_tokens if spec.index else spec.sliding_window or 0,
        moe_layers=moe.sparse_layers if moe else 0,
        experts=moe.num_experts if moe else 0,
        experts_per_token=moe.num_experts_per_tok if moe else 0,
        weights_per_expert=3 * hidden * moe.moe_intermediate_size // ranks if moe else 0,
        expert_format=held.of_experts(_sparse_layers(spec)),
        state_layers=spec.num_linear_layers,
        value_heads=_share(linear.num_value_heads, ranks) if linear else 0,
        streams=spec.streams.count if spec.streams else 1,
        unfused_bytes=_unfused_bytes(spec, ranks, (heads + kv_heads) * spec.head_dim),
    )


def _unfused_bytes(spec: ModelSpec, ranks: int, normed: int) -> int:
    """Two norms with their residual, those of q and k (`normed` elements), and the gate between two products."""
    dense = spec.num_hidden_layers - (spec.moe.sparse_layers if spec.moe else 0)
    norms = spec.num_hidden_layers * 2 * NORM_WITH_SUM_BYTES * spec.hidden_size
    heads = (spec.num_full_layers + spec.num_sliding_layers) * NORM_BYTES * normed if spec.qk_norm else 0
    return norms + heads + dense * GATE_BYTES * spec.intermediate_size // ranks


def _gemms(held: HeldFormats, module: str, layers: Iterable[int], rows: int, columns: int) -> Iterator[Gemm]:
    """A product of each layer, told once for every format in which layers hold its `module`."""
    for weights, count in held.of_layers(module, layers).items():
        yield Gemm(rows, columns, count, weights)


def _sparse_layers(spec: ModelSpec) -> range:
    """Layers with experts: the last ones, where the first have none."""
    sparse = spec.moe.sparse_layers if spec.moe else 0
    return range(spec.num_hidden_layers - sparse, spec.num_hidden_layers)


def _mlp(spec: ModelSpec, held: HeldFormats, ranks: int) -> list[Gemm]:
    """Gate and up in one product, down in another; of sparse layers the router and the shared expert."""
    hidden, sparse = spec.hidden_size, _sparse_layers(spec)
    sizes = [("mlp", spec.intermediate_size // ranks, range(sparse.start))]
    gemms = []
    if spec.moe:
        gemms.append(Gemm(spec.moe.num_experts, hidden, len(sparse), BF16))
        sizes.append(("mlp.shared_expert", spec.moe.shared_expert_intermediate_size // ranks, sparse))
    for module, width, layers in sizes:
        gemms += _gemms(held, f"{module}.gate_proj", layers, 2 * width, hidden)
        gemms += _gemms(held, f"{module}.down_proj", layers, hidden, width)
    return gemms


def _linear_attention(spec: ModelSpec, held: HeldFormats, ranks: int) -> list[Gemm]:
    linear = spec.linear_attention
    if linear is None:
        return []
    layers = [layer for layer, kind in enumerate(spec.layer_types) if kind == "linear_attention"]
    values = linear.value_dim // ranks
    projected = linear.conv_dim // ranks + values  # q, k and v with the gate
    return [
        *_gemms(held, "linear_attn.in_proj_qkv", layers, projected, spec.hidden_size),
        Gemm(2 * linear.num_value_heads // ranks or 2, spec.hidden_size, len(layers), BF16),
        *_gemms(held, "linear_attn.out_proj", layers, spec.hidden_size, values),
    ]


def _whole_on_each_rank(spec: ModelSpec) -> list[Gemm]:
    """Gates of residual streams, projections of an index and behind tables of n-grams: in 16 bit, by every rank."""
    hidden, gemms = spec.hidden_size, []
    if spec.streams:
        width, halves = spec.streams.count * hidden, 2 * spec.num_hidden_layers
        gemms += [Gemm(spec.streams.low_rank + spec.streams.count, width, halves, BF16)]
        gemms += [Gemm(width, spec.streams.low_rank, halves, BF16)]
    if spec.index:
        gemms.append(Gemm(spec.index.projected_dim, hidden, spec.num_full_layers, BF16))
    if spec.ngrams:
        width = hidden * ((spec.streams.count if spec.streams else 1) + 1)
        gemms.append(Gemm(width, spec.ngrams.embed_dim, len(spec.ngrams.layers), BF16))
    return gemms


def _share(count: int, ranks: int) -> int:
    return max(1, -(-count // ranks))
