"""A language model's head that reads half of its bytes where only the likeliest tokens are asked for, and errs nowhere.

At one stream a step is as long as its bytes take to arrive, and of a Qwen3-0.6B in bf16 a quarter are the head's, in
4 bit more than half. A copy of the head in int8 bounds every logit: of weights w = s q + e and states x,

    |w x - s q x| <= ||e|| ||x||     (Cauchy-Schwarz)

so panels of 32 tokens whose upper bound lies below the n-th lower bound hold none of the n likeliest. The others are
computed from the bf16 weights, by the same instructions as the whole product: equal to it bit by bit.
"""

from __future__ import annotations

import torch

from qserve.core.shortlist import SHORTLIST_ROWS
from qserve.model.cpu.linear import CompiledLinear
from qserve.model.cpu.matrix import PANEL, Matrix, int8_matrix

__all__ = ["ShortlistHead"]

_INT8_RANGE = 127
_ROWS_AT_ONCE = 8192
# What sums in fp32 may be off by, of ||w|| ||x||: 1,024 to 8,192 terms of 2^-24 each, over sixteen lanes.
_SUM_ERROR = 4e-4
# Two roundings to bf16, of the bound's logit and of the one that is computed: 2^-9 each, and a little.
_ROUNDING = 2.0**-7
# Of the panels: with more of them the whole product is as fast. A model whose logits lie so close to each other gets
# whole products for a while.
_MOST_CHOSEN = 1 / 4
_WHOLE_PRODUCTS = 100


class ShortlistHead(CompiledLinear):
    """A head of `matrix`, with a copy in int8 for steps that need the likeliest tokens alone.

    Attributes:
        num_wanted: of the next products, how many of the largest logits of each row have to be there; None: all. Where
            it is set, logits that are surely smaller may be minus infinity.
    """

    def __init__(self, matrix: Matrix, bounds: Matrix, errors: torch.Tensor) -> None:
        """`errors` [panels]: the largest ||e|| of each."""
        super().__init__(matrix)
        self.bounds, self.errors = bounds, errors
        self.num_wanted: int | None = None
        self._num_whole = 0

    @classmethod
    def of(cls, matrix: Matrix, weight: torch.Tensor) -> ShortlistHead | None:
        """Of bf16 `weight` [vocab, hidden] that `matrix` was made of; None for shapes without int8 products."""
        if matrix.format != "bfloat16" or matrix.bias is not None:
            return None
        rows, scales, errors = zip(*(_rounded(part) for part in torch.split(weight, _ROWS_AT_ONCE)), strict=True)
        bounds = int8_matrix(torch.cat(rows), torch.cat(scales))
        return None if bounds is None else cls(matrix, bounds, _largest(torch.cat(errors)[None])[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [..., hidden] to logits [..., vocab]."""
        rows = x.reshape(-1, self.in_features).to(torch.bfloat16)
        wanted = self.num_wanted
        if wanted is None or not 0 < len(rows) <= SHORTLIST_ROWS or wanted > _MOST_CHOSEN * self.matrix.num_panels:
            return super().forward(x)
        if self._num_whole:
            self._num_whole -= 1
            return super().forward(x)
        panels = self._chosen(rows, wanted)
        if len(panels) > _MOST_CHOSEN * self.matrix.num_panels:
            self._num_whole = _WHOLE_PRODUCTS
            return super().forward(x)
        return self.matrix.product_of_panels(rows, panels).view(*x.shape[:-1], self.out_features).to(x.dtype)

    def _chosen(self, rows: torch.Tensor, wanted: int) -> torch.Tensor:
        """The panels that may hold one of the `wanted` likeliest tokens of a row, int64."""
        largest = self.bounds.largest_of_panels(rows)
        margin = self.errors * torch.linalg.vector_norm(rows.float(), dim=-1, keepdim=True) + _ROUNDING * largest.abs()
        sure = (largest - margin).topk(wanted, dim=-1).values[:, -1:]
        # NaN is never less: a row of a broken checkpoint gets all of its logits.
        chosen: torch.Tensor = (~(largest + margin < sure)).any(dim=0).nonzero()[:, 0]
        return chosen


def _rounded(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """int8 of rows, their scales, and how far a logit may be off for states of norm one."""
    exact = weight.float()
    scales = exact.abs().amax(dim=1).clamp(min=1e-30) / _INT8_RANGE
    rounded = (exact / scales[:, None]).round()
    errors = torch.linalg.vector_norm(exact - rounded * scales[:, None], dim=1)
    return rounded.to(torch.int8), scales, errors + _SUM_ERROR * torch.linalg.vector_norm(exact, dim=1)


def _largest(values: torch.Tensor) -> torch.Tensor:
    """[rows, vocab] to the largest of each panel, [rows, panels]."""
    missing = -values.shape[1] % PANEL
    padded = torch.nn.functional.pad(values, (0, missing), value=float("-inf")) if missing else values
    return padded.view(len(values), -1, PANEL).amax(dim=-1)
