"""vLLM on a CPU in two processes, not three: the model computes in the engine's process.

vLLM's platform for CPUs puts a single worker into a process of its own, since only so it can bind the worker's threads
to cores. With one memory node there is nothing to gain from that, and each process costs six seconds of imports and
600 MiB. On a card vLLM has one process for both by default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qserve.detect.host import count_numa_nodes, count_physical_cores
from qserve.engines.vllm.plan.versions import VllmVersion
from qserve.planner.plan import Plan

__all__ = ["joined_processes"]

_JOINED = "VLLM_ENABLE_V1_MULTIPROCESSING"
# Who sets one of these has decided for himself how threads are bound.
_USERS_OWN = (_JOINED, "VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_NUM_OF_RESERVED_CPU")
_SEVERAL_ENGINES = "--data-parallel"


def joined_processes(plan: Plan, words: Sequence[str], inherited: Mapping[str, str]) -> dict[str, str]:
    """What the environment needs so that engine and worker are one process; empty where they stay two.

    Args:
        plan: says whether it is a CPU's, and how many ranks.
        words: the server's flags, the user's among them.
        inherited: the user's environment, which is left as it is.

    """
    placement = plan.placement
    num_ranks = placement.num_ranks
    is_users_own = any(name in inherited for name in _USERS_OWN) or any(
        word.startswith(_SEVERAL_ENGINES) for word in words
    )
    if not plan.on_cpu or is_users_own:
        return {}
    if not VllmVersion.parse(plan.engine_version).joins_worker_on_cpu(num_ranks, count_numa_nodes()):
        return {}
    return {_JOINED: "0", "OMP_NUM_THREADS": inherited.get("OMP_NUM_THREADS") or str(_num_threads())}


def _num_threads() -> int:
    """Of the arithmetic: as many as vLLM's own binding takes, a core each and one left for the other processes.

    Threads wait for each other by spinning: with one on every core, whatever else runs halts all of them.
    """
    return max(1, count_physical_cores() - 1)
