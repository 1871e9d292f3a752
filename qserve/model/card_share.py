"""Cards that a worker shares with other processes: its allocator keeps to what the plan leaves it."""

from __future__ import annotations

import torch

from qserve.planner.plan import Plan

__all__ = ["keep_to_plan"]


def keep_to_plan(plan: Plan) -> None:
    """From now on torch takes of a card no more than its total less what the plan counts for others.

    torch keeps what it freed. Without a limit a busy worker comes to hold a whole card in free blocks, and its
    neighbour there, which is entitled to its share, runs out; at the limit those blocks are given back first.
    """
    if plan.on_cpu or not torch.cuda.is_available():
        return
    for index, device in enumerate(plan.devices):
        if device.used_by_others_bytes and device.weights_bytes:
            own = device.total_bytes - device.used_by_others_bytes - device.runtime_bytes - device.cuda_graphs_bytes
            torch.cuda.set_per_process_memory_fraction(max(0.0, own / device.total_bytes), index)
