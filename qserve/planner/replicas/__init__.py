"""Replicas on one machine: the part of it that each gets, and the plan for that part.

Cards go to replicas whole, `tensor_parallel_size` to each. Where there are more replicas than that, those of one card
share its memory evenly. On a CPU all share RAM and cores evenly.
"""

from __future__ import annotations

from qserve.planner.replicas.both import SharedReplicas, plan_both
from qserve.planner.replicas.parts import share_out
from qserve.planner.replicas.plans import AUTO, NumReplicas, ReplicaPlan, as_one, num_engines, plan_replicas, spread

__all__ = [
    "AUTO",
    "NumReplicas",
    "ReplicaPlan",
    "SharedReplicas",
    "as_one",
    "num_engines",
    "plan_both",
    "plan_replicas",
    "share_out",
    "spread",
]
