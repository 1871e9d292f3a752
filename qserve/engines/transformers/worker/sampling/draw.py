"""From scores to tokens, all rows at once and without waiting for the device: top-k, top-p, min-p, and the draw.

A row's token is found by its own random number among the row's shares in a fixed order: of falling scores, equal ones
by their ids. No row's token depends on which other rows are drawn with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from qserve.engines.transformers.kernels.refusals import TOP_P_DRAW
from qserve.engines.transformers.worker.sampling.params import SamplingParams
from qserve.model.transfers import upload

__all__ = ["ON_CARDS", "Truncation", "drawn", "drawn_by_sort", "largest", "left", "likeliest", "num_candidates"]

# Equal scores at the border of top-k are told apart by their ids; so many more are looked at for it.
_SPARE = 32
_CANDIDATES = (64, 256, 1056)
_LOWEST = float("-inf")
_NO_TOP_K = 1 << 40

ON_CARDS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {}
"""What cards take in place of a sort, once `nucleus.choose_draw` has found it right: of scores [rows, vocab],
`log_min_p` and `top_p` of a `Truncation`, and the rows' numbers, tokens [rows]."""


@dataclass(frozen=True)
class Truncation:
    """What is kept of each row; all are tensors [rows].

    Attributes:
        top_k: the largest number kept (int64); from `_NO_TOP_K` on: any.
        log_min_p: by how much less than the largest a score may be; minus infinity: by any.
        top_p: tokens are kept until their shares sum to it; above one: all.
        has_top_k: whether any row has a `top_k`.
    """

    top_k: torch.Tensor
    log_min_p: torch.Tensor
    top_p: torch.Tensor
    has_top_k: bool

    @classmethod
    def of(cls, params: Sequence[SamplingParams], vocab_size: int, device: torch.device) -> Truncation:
        """What rows ask for."""
        asked = [
            (
                float(one.top_k if 0 < one.top_k < vocab_size else _NO_TOP_K),
                math.log(one.min_p) if one.min_p > 0.0 else _LOWEST,
                one.top_p if one.top_p < 1.0 else 2.0,
            )
            for one in params
        ]
        top_k, log_min_p, top_p = upload(list(zip(*asked, strict=True)), torch.float64, device)
        has_top_k = any(0 < one.top_k < vocab_size for one in params)
        return cls(top_k.long(), log_min_p.float(), top_p, has_top_k)


def num_candidates(top_k: int, vocab_size: int) -> int | None:
    """How many of the largest scores are looked at for `top_k`; None: there is no small one, and all are."""
    if not 0 < top_k < vocab_size:
        return None
    return next((min(size, vocab_size) for size in _CANDIDATES if top_k + _SPARE <= size), None)


def likeliest(scores: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `number` largest of each row, falling, equal ones by id, and their ids."""
    values, ids = scores.topk(number, dim=-1)
    by_id = ids.argsort(dim=-1)
    values, ids = values.gather(-1, by_id), ids.gather(-1, by_id)
    values, order = values.sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(-1, order)


def largest(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest of each row and its id, the first of equal ones; NaN where there is one.

    On a CPU by NumPy: over 152,000 tokens in eight rows torch's own takes 1 ms, NumPy's a tenth of that.
    """
    if scores.device.type == "cpu":
        return scores.amax(dim=-1), torch.from_numpy(scores.numpy().argmax(axis=-1))
    highest, ids = scores.max(dim=-1)
    return highest, ids


def drawn(
    scores: torch.Tensor, number: int | None, truncation: Truncation | None, uniforms: torch.Tensor
) -> torch.Tensor:
    """A token of each row of `scores` [rows, vocab] (over the temperature) by its number of `uniforms`, float64.

    `number` as `num_candidates` says; no `truncation`: nothing is left out.
    """
    if truncation is None:
        return _found(torch.softmax(scores, dim=-1), uniforms)
    if number is None and scores.device.type == "cuda" and not truncation.has_top_k and TOP_P_DRAW in ON_CARDS:
        return ON_CARDS[TOP_P_DRAW](scores, truncation.log_min_p, truncation.top_p, uniforms)
    return _drawn_of(*left(scores, number, truncation), uniforms)


def drawn_by_sort(scores: torch.Tensor, truncation: Truncation, uniforms: torch.Tensor) -> torch.Tensor:
    """As `drawn`, where any number of tokens may be kept, by a sort of whole rows."""
    return _drawn_of(*_left_of_all(scores, truncation), uniforms)


def _drawn_of(ids: torch.Tensor, shares: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    return ids.gather(-1, _found(shares, uniforms)[:, None])[:, 0]


def left(scores: torch.Tensor, number: int | None, truncation: Truncation) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of each row's tokens, likeliest first, and their shares: zero where they are left out."""
    if number is not None:
        values, ids = likeliest(scores, number)
        return ids, _shares(values, truncation, None)
    if scores.device.type == "cpu" and scores.shape[-1] > _CANDIDATES[-1]:
        return _left_of_likeliest(scores, truncation)
    return _left_of_all(scores, truncation)


def _left_of_likeliest(scores: torch.Tensor, truncation: Truncation) -> tuple[torch.Tensor, torch.Tensor]:
    """`left` on a CPU, where asking costs nothing: the likeliest thousand mostly suffice.

    Where they do not, all of a row are sorted, of that row alone: the others' shares are the same to the last bit.
    """
    values, ids = likeliest(scores, _CANDIDATES[-1])
    log_total = torch.logsumexp(scores, dim=-1)
    suffices = _suffices(values, log_total, truncation)[:, None]
    shares = _shares(values, truncation, log_total)
    if bool(suffices.all()):
        return ids, shares
    all_ids, all_shares = _left_of_all(scores, truncation)
    missing = (0, scores.shape[-1] - ids.shape[-1])
    ids, shares = (torch.nn.functional.pad(part, missing) for part in (ids, shares))
    return torch.where(suffices, ids, all_ids), torch.where(suffices, shares, all_shares)


def _left_of_all(scores: torch.Tensor, truncation: Truncation) -> tuple[torch.Tensor, torch.Tensor]:
    """`left` of whole rows, sorted: also what a card does that has no kernel for it."""
    values, ids = scores.sort(dim=-1, descending=True, stable=True)
    return ids, _shares(values, truncation, None)


def _suffices(values: torch.Tensor, log_total: torch.Tensor, truncation: Truncation) -> torch.Tensor:
    """Whether nothing beyond the likeliest is kept, for each row."""
    sure = values[:, : values.shape[1] - _SPARE]
    below_floor = sure[:, -1] < values[:, 0] + truncation.log_min_p
    mass = torch.exp(torch.logsumexp(sure, dim=-1) - log_total)
    by_mass_alone = torch.isneginf(truncation.log_min_p) & (truncation.top_k >= _NO_TOP_K)
    return below_floor | (by_mass_alone & (mass >= truncation.top_p))


def _shares(values: torch.Tensor, truncation: Truncation, log_total: torch.Tensor | None) -> torch.Tensor:
    """In vLLM's order: min-p and top-k first; top-p counts shares of what they leave.

    `log_total` is of all scores where `values` are not all of them, and no min-p says that the rest is left out.
    """
    places = torch.arange(values.shape[1], device=values.device)
    kept = places < truncation.top_k[:, None]
    kept &= (values >= values[:, :1] + truncation.log_min_p[:, None]) | (places == 0)
    shares = values.masked_fill(~kept, _LOWEST)
    total = torch.logsumexp(shares, dim=-1)
    if log_total is not None:
        total = torch.where(torch.isneginf(truncation.log_min_p), log_total, total)
    shares = torch.exp(shares - total[:, None])
    before = shares.cumsum(dim=-1, dtype=torch.float64) - shares
    return shares.masked_fill((before >= truncation.top_p[:, None]) & (places > 0), 0.0)


def _found(shares: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The place of each row at which the sum of its shares passes the row's number."""
    sums = shares.cumsum(dim=-1, dtype=torch.float64)
    places = torch.searchsorted(sums, uniforms[:, None] * sums[:, -1:], right=True)[:, 0]
    return places.clamp_(max=shares.shape[-1] - 1)
