"""What a layer's experts in fp8 ask of a card: launches and waits of the loop and of grouped products, counted.

Sizes decide nothing here but the number of experts and how many a token has: those of Qwen3-30B-A3B. Kernels of ours
are recorded and not run; bytes are of its real sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from bench.step_counts import launches_of, waits_of
from qserve.model.cuda.kernels import recording
from qserve.model.cuda.products import KERNEL
from qserve.model.fp8.experts import by_loop
from qserve.model.fp8.experts_trial import random_experts
from qserve.model.fp8.products import PRODUCTS
from qserve.model.fp8.routing import ExpertsShape
from qserve.model.fp8.triton_experts import grouped

__all__ = ["ExpertCounts", "count_experts", "experts_table"]

_EXPERTS, _TOP, _SIDE = 128, 8, 128
_BYTES_AN_EXPERT = 3 * 768 * 2048


@dataclass(frozen=True)
class ExpertCounts:
    """Of one layer: experts that have rows, and what the loop and the grouped products launch and wait for."""

    hit: int
    loop_launches: int
    loop_waits: int
    grouped_launches: int
    grouped_waits: int


@torch.no_grad()
def count_experts(chosen: torch.Tensor) -> ExpertCounts:
    """Of rows that have the experts `chosen` [rows, `_TOP`]."""
    blocks = (_SIDE,) * 4
    experts = random_experts("cpu", ExpertsShape(_EXPERTS, _SIDE, _SIDE, *blocks))
    states = torch.ones(len(chosen), _SIDE, dtype=torch.bfloat16)
    shares = torch.ones(chosen.shape, dtype=torch.bfloat16)
    loop = _counted(lambda: by_loop(experts, states, chosen, shares, PRODUCTS[KERNEL]))
    together = _counted(lambda: grouped(states, chosen, shares, *experts.weights))
    return ExpertCounts(len(chosen.unique()), *loop, *together)


def experts_table(rows: Sequence[int]) -> str:
    """Markdown, of random routings."""
    lines = [
        "| rows | experts hit | their weights, MB | launches of the loop | its waits | grouped launches | waits |",
        "|---|---|---|---|---|---|---|",
    ]
    generator = torch.Generator().manual_seed(0)
    for num in rows:
        found = count_experts(torch.rand(num, _EXPERTS, generator=generator).topk(_TOP, dim=1).indices)
        lines.append(
            f"| {num} | {found.hit} | {found.hit * _BYTES_AN_EXPERT / 1e6:.0f} | {found.loop_launches} "
            f"| {found.loop_waits} | {found.grouped_launches} | {found.grouped_waits} |"
        )
    return "\n".join(lines)


def _counted(call: Callable[[], object]) -> tuple[int, int]:
    """Launches of torch's and of ours, and waits."""
    with recording() as ours:
        launched = launches_of(call).total()
    launched += len(ours)
    with recording():
        return launched, waits_of(call)
