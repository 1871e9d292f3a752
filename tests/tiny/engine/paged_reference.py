"""A kernel that reads keys in their pages, one query at a time: slow, and as plain as can be."""

from __future__ import annotations

from itertools import pairwise

import torch

from qserve.engines.transformers.worker.attention.pages import PageStep

__all__ = ["read_in_place"]


def read_in_place(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: PageStep, scaling: float, shift: int = 0
) -> torch.Tensor:
    """A `PagedKernel`; with a `shift`, one that is wrong about what comes after a query."""
    group = query.shape[1] // keys.shape[2]
    mixed = torch.zeros_like(query)
    for row, (start, stop) in enumerate(pairwise(step.query_bounds.tolist())):
        found = [
            part[step.block_table[row].long()].flatten(0, 1).float().repeat_interleave(group, 1)
            for part in (keys, values)
        ]
        for place in range(start, stop):
            end = int(step.num_keys[row]) - (stop - 1 - place) + shift
            scores = torch.einsum("hd,khd->hk", query[place].float(), found[0][:end]) * scaling
            mixed[place] = torch.einsum("hk,khd->hd", scores.softmax(-1), found[1][:end]).to(query.dtype)
    return mixed
