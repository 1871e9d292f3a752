"""How long one operation takes on a card, in microseconds. The forms; their numbers are configs/speed_kernels.toml.

Each form joins a floor (launch, scheduling of blocks), the bytes over the bandwidth that the kernel reaches, and the
FLOP over the peak that it reaches. docs/speed.md derives them, scripts/fit_speed.py fits them.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

from qserve.core.quantization.weight_format import WeightFormat
from qserve.planner.speed.terms.card import UNFUSED, CardSpeed

__all__ = [
    "DecodeForm",
    "GemmForm",
    "MeasuredForm",
    "PrefillForm",
    "decode_attention_form",
    "experts_read",
    "experts_us",
    "gemm_form",
    "gemm_us",
    "prefill_attention_form",
    "reduce_us",
    "state_decode_us",
    "state_prefill_us",
    "unfused_form",
]

Products = tuple[tuple[int, float], ...]
"""(rows, picoseconds a weight)."""
_STATE_BYTES = 128 * 128 * 4 * 2
"""Of one value head of the gated delta rule: float32, read and written."""


class GemmForm(NamedTuple):
    """One product: t0 + [(memory + tokens · memory_token)^q + (tokens · math_token)^q]^(1/q), in microseconds.

    `memory_one` stands for `memory` where there is one token: some kernels unpack weights for several alone.
    """

    floor: float
    memory_one: float
    memory: float
    memory_token: float
    math_token: float
    q: float

    def us(self, tokens: int) -> float:
        """Of so many rows of activations."""
        memory = (self.memory if tokens > 1 else self.memory_one) + tokens * self.memory_token
        return self.floor + _joined(memory, tokens * self.math_token, self.q)


class MeasuredForm(NamedTuple):
    """One product on a machine that was measured: (rows, picoseconds a weight), straight between two of them.

    Beyond the most rows it grows with them.
    """

    num_weights: int
    products: Products

    def us(self, tokens: int) -> float:
        """Of so many rows of activations."""
        place = bisect.bisect_left(self.products, (tokens, 0.0))
        if place == len(self.products):
            most, ps = self.products[-1]
            ps *= tokens / most
        else:
            after, ps = self.products[place]
            if place and tokens < after:
                before, start = self.products[place - 1]
                ps = start + (ps - start) * (tokens - before) / (after - before)
        return self.num_weights * ps / 1e6


def gemm_form(card: CardSpeed, weights: WeightFormat, rows: int, columns: int) -> GemmForm | MeasuredForm:
    """Of a weight of `rows` by `columns`: as it was measured, else the q-norm of memory and math bound."""
    if weights.name in card.products:
        return MeasuredForm(rows * columns, _products_of(rows * columns, card.products[weights.name]))
    floor, bandwidth_share, peak_share, q = card.kernel(f"gemm_{weights.gemm}")[:4]
    per_byte = 1e6 / (card.bandwidth * bandwidth_share * weights.bandwidth_factor)
    math = 2e6 * rows * columns / (card.peak(weights.math) * peak_share * weights.peak_factor)
    one, several = (rows * columns * weights.bytes_read(tokens) * per_byte for tokens in (1, 2))
    return GemmForm(floor, one, several, (rows + columns) * 2 * per_byte, math, q)


def _products_of(num_weights: int, measured: tuple[tuple[int, Products], ...]) -> Products:
    """(rows, picoseconds a weight) of a matrix. Through two sizes that were measured the time goes straight.

    What begins and ends a product is a constant, the rest goes with the bytes. Where a weight of the larger size costs
    more, since the smaller one stays in caches, each holds beyond itself.
    """
    if len(measured) == 1:
        return measured[0][1]
    (few, small), (many, large) = measured
    found = []
    for (rows, ps), (_, other) in zip(small, large, strict=True):
        each = (many * other - few * ps) / (many - few)
        line = each + few * (ps - each) / num_weights
        found.append((rows, max(line, ps) if num_weights < few else min(line, other) if num_weights > many else line))
    return tuple(found)


def gemm_us(card: CardSpeed, weights: WeightFormat, tokens: int, rows: int, columns: int) -> float:
    """`tokens` rows of activations times a weight of `rows` by `columns`."""
    return gemm_form(card, weights, rows, columns).us(tokens)


def unfused_form(card: CardSpeed, bytes_per_token: int, share: float) -> MeasuredForm:
    """Norms and gates of a step with prompts, by its tokens: as measured, else at a share of the bandwidth, 0: none."""
    if not share:
        return MeasuredForm(0, ((1, 0.0),))
    measured = card.products.get(UNFUSED)
    return MeasuredForm(bytes_per_token, measured[0][1] if measured else ((1, 1e12 / (card.bandwidth * share)),))


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


class DecodeForm(NamedTuple):
    """Attention of one layer in a decode step, in microseconds; `token` for each token in the caches of a batch,
    `context` for each of a sequence's mean length."""

    floor: float
    token: float
    q: float
    context: float

    def us(self, batch: int, context: float) -> float:
        """Of `batch` sequences of `context` tokens in the mean. Called by the leap: `_joined`, without a call."""
        floor, token, q, per_context = self
        read = batch * context * token
        if q == 1.0:
            return floor + read + per_context * context
        shorter, longer = (floor, read) if floor < read else (read, floor)
        joined = longer * (1.0 + (shorter / longer) ** q) ** (1 / q) if longer else 0.0
        return joined + per_context * context


def decode_attention_form(card: CardSpeed, head_dim: int, bytes_per_token: float, cache: str = "bf16") -> DecodeForm:
    """`bytes_per_token` of a layer's cache on this rank."""
    floor, bandwidth_share, q, ns_per_token = card.kernel(f"decode_{cache}_{_known_dim(head_dim)}")[:4]
    return DecodeForm(floor, 1e6 * bytes_per_token / (card.bandwidth * bandwidth_share), q, ns_per_token / 1000)


class PrefillForm(NamedTuple):
    """Causal attention of one layer in a prompt, in microseconds: `pair` for each pair of tokens, `new` and `before`
    for each token that is read."""

    floor: float
    pair: float
    new: float
    before: float

    def us(self, new: int, before: int) -> float:
        """Of `new` tokens that follow `before` cached ones."""
        return self.floor + new * (before + new / 2) * self.pair + new * self.new + before * self.before


def prefill_attention_form(card: CardSpeed, heads: int, kv_heads: int, head_dim: int) -> PrefillForm:
    """Of one rank's heads."""
    floor, peak_share, bandwidth_share = card.kernel(f"prefill_{_known_dim(head_dim)}")[:3]
    pair = 4e6 * heads * head_dim / (card.peak("bf16") * peak_share)
    per_head = 4e6 * head_dim / (card.bandwidth * bandwidth_share)
    return PrefillForm(floor, pair, (heads + kv_heads) * per_head, kv_heads * per_head)


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
    shorter, longer = (first, second) if first < second else (second, first)
    return longer * (1.0 + (shorter / longer) ** q) ** (1 / q) if longer else 0.0


def _known_dim(head_dim: int) -> int:
    return 256 if head_dim > 128 else 128 if head_dim > 64 else 64
