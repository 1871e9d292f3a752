"""A draw by top-p and min-p for cards, in Triton: no score is sorted, and the host does not wait.

A token's mass is a whole number: its probability over that of the row's likeliest, in units of 2^-44. Sums of whole
numbers are the same in any order, so programs add to them as they come. The two thousand likeliest tokens are gathered,
and mostly hold the nucleus; where they do not, the whole row is read. The border of the nucleus, and then the token, is
found by halving the range of scores: how much mass lies above the middle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from qserve.model.cuda.kernels import Sizes, card_kernel

__all__ = ["draw_by_mass"]

_BINS = 256
"""Of an eighth of a nat each, from a row's largest score down; the last one has all that is below."""

_MOST_LIKELY = 2048
_BLOCK = 4096
"""Scores that a program counts or gathers."""


def draw_by_mass(
    scores: torch.Tensor, log_min_p: torch.Tensor, top_p: torch.Tensor, uniforms: torch.Tensor
) -> torch.Tensor:
    """As `draw.drawn_by_sort` where no row has a top-k: of scores [rows, vocab], tokens [rows]; five launches.

    Args:
        scores: float32, over the temperature.
        log_min_p: float32 [rows], as `Truncation` has it.
        top_p: float64 [rows], likewise.
        uniforms: float64 [rows], from zero to below one: each row's own number.

    """
    rows, vocab_size = scores.shape
    scores = scores.contiguous()
    highest = scores.amax(dim=-1)
    # Scores of each bin; what was gathered; the mass of a row.
    sums = torch.zeros(rows, _BINS + 2, dtype=torch.int64, device=scores.device)
    likely = scores.new_empty(rows, _MOST_LIKELY)
    ids = torch.empty(rows, _MOST_LIKELY, dtype=torch.int32, device=scores.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=scores.device)
    blocks = triton.cdiv(vocab_size, _BLOCK), rows
    with torch.cuda.device_of(scores):  # type: ignore[no-untyped-call]
        _count_scores[blocks](scores, highest, log_min_p, sums, vocab_size, bins=_BINS, block=_BLOCK, num_warps=8)
        _gather_likeliest[blocks](
            scores, highest, sums, likely, ids, vocab_size, bins=_BINS, most=_MOST_LIKELY, block=_BLOCK, num_warps=8
        )
        _draw_by_mass[(rows,)](
            scores,
            highest,
            log_min_p,
            top_p,
            uniforms,
            sums,
            likely,
            ids,
            tokens,
            vocab_size,
            bins=_BINS,
            most=_MOST_LIKELY,
            num_warps=16,
        )
    return tokens


def _draws(sizes: Sizes) -> Iterator[Callable[[], object]]:
    scores, rows = torch.empty(2, sizes.spec.vocab_size, device="meta"), torch.empty(2, device="meta")
    yield lambda: draw_by_mass(scores, rows, rows.double(), rows.double())


@triton.jit
def _masses(values, highest, floor):  # type: ignore[no-untyped-def]
    """Of scores, as whole numbers; of those below `floor`, none."""
    likely = tl.exp(values - highest) * 17592186044416.0  # 2^44: 2^18 of them are below 2^63
    return tl.where(values >= floor, likely.to(tl.int64), 0)


@triton.jit
def _bins_of(values, highest, bins: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.minimum((highest - values) * 8.0, bins - 1.0).to(tl.int32)
    return tl.minimum(tl.maximum(places, 0), bins - 1)  # NaN in a row, too, writes nowhere else


@triton.jit
def _keys_of(values):  # type: ignore[no-untyped-def]
    """int32 in the order of the numbers; both zeros have one."""
    bits = values.to(tl.int32, bitcast=True)
    return tl.where(values == 0.0, 0, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits))


@triton.jit
def _mass_above(values_at, number, key, highest, floor, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of those of `number` values at `values_at` whose keys are above `key`."""
    masses = tl.zeros([block], tl.int64)
    for start in range(0, number, block):
        places = start + tl.arange(0, block)
        values = tl.load(values_at + places, mask=places < number, other=float("-inf"))
        masses += tl.where(_keys_of(values) > key, _masses(values, highest, floor), 0)
    return tl.sum(masses, axis=0)


@triton.jit
def _border(values_at, number, wanted, low, high, highest, floor, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """The lowest key above `low` above which there is less than `wanted`, and how much there is.

    Above `low` there is `wanted` or more, above `high` there is not.
    """
    above = tl.zeros([], tl.int64)
    while low + 1 < high:
        middle = (low + high) >> 1
        mass = _mass_above(values_at, number, middle.to(tl.int32), highest, floor, block)
        if mass < wanted:
            high = middle
            above = mass
        else:
            low = middle
    return high, above


@triton.jit
def _mass_of_key(key, highest, floor):  # type: ignore[no-untyped-def]
    bits = tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.int32)
    # At least one: a broken row's division ends, too.
    return tl.maximum(_masses(bits.to(tl.float32, bitcast=True), highest, floor), 1)


@triton.jit
def _times(mass, one):  # type: ignore[no-untyped-def]
    """How often `one` goes into `mass`: fewer times than float32 counts by ones, and no division of 64 bits."""
    times = (mass.to(tl.float32) / one.to(tl.float32)).to(tl.int64)
    times = tl.where(times * one > mass, times - 1, times)
    return tl.where((times + 1) * one <= mass, times + 1, times)


@triton.jit
def _token(  # type: ignore[no-untyped-def]
    values_at,
    ids_at,
    number,
    total,
    top_p,
    uniform,
    highest,
    floor,
    vocab_size,
    has_ids: tl.constexpr,
    block: tl.constexpr,
):
    """Where the sum of masses passes `uniform` of what is kept, scores falling and equal ones in the order of ids."""
    limit = tl.ceil(tl.minimum(top_p, 1.0) * total.to(tl.float64)).to(tl.int64)
    limit = tl.maximum(tl.minimum(limit, total), 1)
    lowest = tl.full([], -2147483648, tl.int64)
    largest = _keys_of(highest).to(tl.int64)
    key, above = _border(values_at, number, limit, lowest, largest, highest, floor, block)
    mass = _mass_of_key(key, highest, floor)
    kept = above + (_times(limit - above - 1, mass) + 1) * mass
    target = tl.minimum((uniform * kept.to(tl.float64)).to(tl.int64), kept - 1)
    key, above = _border(values_at, number, target + 1, key - 1, largest, highest, floor, block)
    place = _times(target - above, _mass_of_key(key, highest, floor))
    # The token of so many before it, among those of this score.
    low, high = tl.full([], -1, tl.int64), (tl.zeros([], tl.int64) + vocab_size - 1)
    while low + 1 < high:
        middle = (low + high) >> 1
        equal = tl.zeros([block], tl.int32)
        for start in range(0, number, block):
            places = start + tl.arange(0, block)
            values = tl.load(values_at + places, mask=places < number, other=float("-inf"))
            ids = tl.load(ids_at + places, mask=places < number, other=vocab_size) if has_ids else places
            equal += ((_keys_of(values) == key.to(tl.int32)) & (ids <= middle) & (places < number)).to(tl.int32)
        if tl.sum(equal, axis=0) > place:
            high = middle
        else:
            low = middle
    return high


@card_kernel(_draws)
def _count_scores(scores, highest, log_min_p, sums, vocab_size, bins: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(1).to(tl.int64)
    places = tl.program_id(0) * block + tl.arange(0, block)
    values = tl.load(scores + row * vocab_size + places, mask=places < vocab_size, other=float("-inf"))
    largest = tl.load(highest + row)
    own = sums + row * (bins + 2)
    counts = tl.histogram(_bins_of(values, largest, bins), bins)
    tl.atomic_add(own + tl.arange(0, bins), counts.to(tl.int64), mask=counts > 0)
    masses = _masses(values, largest, largest + tl.load(log_min_p + row))
    tl.atomic_add(own + bins + 1, tl.sum(masses, axis=0))


@card_kernel(_draws)
def _gather_likeliest(  # type: ignore[no-untyped-def]
    scores, highest, sums, likely, ids, vocab_size, bins: tl.constexpr, most: tl.constexpr, block: tl.constexpr
):
    row = tl.program_id(1).to(tl.int64)
    own = sums + row * (bins + 2)
    # Whole bins, as many as there is room for.
    num_bins = tl.sum((tl.cumsum(tl.load(own + tl.arange(0, bins)), axis=0) <= most).to(tl.int32), axis=0)
    places = tl.program_id(0) * block + tl.arange(0, block)
    values = tl.load(scores + row * vocab_size + places, mask=places < vocab_size, other=float("-inf"))
    taken = (_bins_of(values, tl.load(highest + row), bins) < num_bins) & (places < vocab_size)
    number = tl.sum(taken.to(tl.int32), axis=0)
    if number > 0:
        start = row * most + tl.atomic_add(own + bins, number.to(tl.int64))
        targets = start + tl.cumsum(taken.to(tl.int32), axis=0) - 1
        tl.store(likely + targets, values, mask=taken)
        tl.store(ids + targets, places, mask=taken)


@card_kernel(_draws)
def _draw_by_mass(  # type: ignore[no-untyped-def]
    scores,
    highest,
    log_min_p,
    top_p,
    uniforms,
    sums,
    likely,
    ids,
    tokens,
    vocab_size,
    bins: tl.constexpr,
    most: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    largest, share = tl.load(highest + row), tl.load(top_p + row)
    floor, uniform = largest + tl.load(log_min_p + row), tl.load(uniforms + row)
    number, total = tl.load(sums + row * (bins + 2) + bins).to(tl.int32), tl.load(sums + row * (bins + 2) + bins + 1)
    values_at, ids_at = likely + row * most, ids + row * most
    gathered = _mass_above(values_at, number, -2147483648, largest, floor, most)
    if gathered.to(tl.float64) >= tl.minimum(share, 1.0) * total.to(tl.float64):
        token = _token(values_at, ids_at, number, total, share, uniform, largest, floor, vocab_size, True, most)
    else:
        values_at = scores + row * vocab_size
        token = _token(values_at, ids_at, vocab_size, total, share, uniform, largest, floor, vocab_size, False, most)
    tl.store(tokens + row, token)
