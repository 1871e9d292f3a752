"""How long one operation takes on a card, in microseconds. The forms; their numbers are configs/speed_kernels.toml.

Each form joins a floor (launch, scheduling of blocks), the bytes over the bandwidth that the kernel reaches, and the
FLOP over the peak that it reaches. docs/speed.md derives them, scripts/fit_speed.py fits them.
"""

from __future__ import annotations

from qserve.planner.speed.terms.card import CardSpeed
from qserve.planner.speed.terms.formats import WeightFormat

__all__ = [
    "decode_attention_us",
    "experts_read",
    "experts_us",
    "gemm_us",
    "prefill_attention_us",
    "reduce_us",
    "state_decode_us",
    "state_prefill_us",
]

_STATE_BYTES = 128 * 128 * 4 * 2
"""Of one value head of the gated delta rule: float32, read and written."""


def gemm_us(card: CardSpeed, weights: WeightFormat, tokens: int, rows: int, columns: int) -> float:
    """`tokens` rows of activations times a weight of `rows` by `columns`, the q-norm of memory and math bound."""
    floor, bandwidth_share, peak_share, q = card.kernel(f"gemm_{weights.gemm}")[:4]
    activations = tokens * (rows + columns) * 2
    memory = (rows * columns * weights.bytes_read(tokens) + activations) / (
        card.bandwidth * bandwidth_share * weights.bandwidth_factor
    )
    math = 2 * tokens * rows * columns / (card.peak(weights.math) * peak_share * weights.peak_factor)
    return floor + 1e6 * _joined(memory, math, q)


def experts_read(experts: int, chosen: int, tokens: int, skew: float) -> float:
    """Experts that `tokens` tokens touch: E (1 - (1 - k/E)^(T^skew)); skew 1 is uniform routing."""
    return experts * (1.0 - (1.0 - chosen / experts) ** (tokens**skew)) if tokens else 0.0


def experts_us(
    card: CardSpeed, weights: WeightFormat, tokens: int, experts: int, chosen: int, weights_per_expert: int
) -> float:
    """All experts of one layer; `weights_per_expert` counts gate, up and down of this rank."""
    floor, bandwidth_share, peak_share, skew, q = card.kernel(f"moe_{weights.experts}")[:5]
    nbytes = experts_read(experts, chosen, tokens, skew) * weights_per_expert * weights.bytes_per_weight
    memory = nbytes / (card.bandwidth * bandwidth_share)
    math = 2 * tokens * chosen * weights_per_expert / (card.peak(weights.math) * peak_share)
    return floor + 1e6 * _joined(memory, math, q)


def decode_attention_us(card: CardSpeed, head_dim: int, kv_bytes: float, context: float, cache: str = "bf16") -> float:
    """One new token of every sequence over `kv_bytes` of cache in all; `context` is the mean length of a sequence."""
    floor, bandwidth_share, q, ns_per_token = card.kernel(f"decode_{cache}_{_known_dim(head_dim)}")[:4]
    memory = 1e6 * kv_bytes / (card.bandwidth * bandwidth_share)
    return _joined(floor, memory, q) + ns_per_token * context / 1000


def prefill_attention_us(card: CardSpeed, heads: int, kv_heads: int, head_dim: int, new: int, before: int) -> float:
    """Causal attention of `new` tokens that follow `before` cached ones."""
    floor, peak_share, bandwidth_share = card.kernel(f"prefill_{_known_dim(head_dim)}")[:3]
    math = 4 * new * (before + new / 2) * heads * head_dim / (card.peak("bf16") * peak_share)
    nbytes = (new * 2 * heads + (new + before) * 2 * kv_heads) * head_dim * 2
    return floor + 1e6 * (math + nbytes / (card.bandwidth * bandwidth_share))


def reduce_us(card: CardSpeed, ranks: int, nbytes: float) -> float:
    """One all-reduce of `nbytes` over `ranks` cards; 0 for one card."""
    if ranks == 1:
        return 0.0
    floor, gb_per_s = card.link(ranks)
    return floor + nbytes / gb_per_s / 1000


def state_decode_us(card: CardSpeed, value_heads: int, sequences: int) -> float:
    """A step of the gated delta rule: every sequence's state is read and written."""
    floor, bandwidth_share = card.kernel("state_decode")[:2]
    return floor + 1e6 * sequences * value_heads * _STATE_BYTES / (card.bandwidth * bandwidth_share)


def state_prefill_us(card: CardSpeed, value_heads: int, tokens: int, longest: int) -> float:
    """Convolution and chunked rule over prompts of `tokens` in all.

    Linear in their length. The chunks of one prompt follow each other, so that the `longest` one takes its time however
    few heads a rank has.
    """
    floor, ns_per_token, ns_per_token_and_head = card.kernel("state_prefill")[:3]
    return floor + (longest * ns_per_token + tokens * value_heads * ns_per_token_and_head) / 1000


def _joined(first: float, second: float, q: float) -> float:
    """The q-norm: 1 adds (no overlap), large q takes the longer of the two (full overlap)."""
    if q == 1.0:
        return first + second
    longer = max(first, second)
    return longer * ((first / longer) ** q + (second / longer) ** q) ** (1 / q) if longer else 0.0


def _known_dim(head_dim: int) -> int:
    return 256 if head_dim > 128 else 128 if head_dim > 64 else 64
