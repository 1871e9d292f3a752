"""Sleep mode: memory of which vLLM can let go lies in pools of its own."""

from __future__ import annotations

from qserve.engines.vllm.plan import constants
from qserve.engines.vllm.plan.trial import Trial
from qserve.planner.term import TermKind

__all__ = ["SleepPools"]


class SleepPools(TermKind[Trial]):
    """What is left over in the segments of weights, work buffers, cache and the rest, each a pool that shares none."""

    name, column = "sleep pools", "runtime"

    def num_bytes(self, sizes: Trial, stage: int) -> int:
        return constants.SLEEP_POOLS.num_bytes if sizes.options.enable_sleep_mode else 0

    def formula(self, sizes: Trial, stage: int) -> str:
        return "--enable-sleep-mode: half of a segment of 20 MiB and of one of 2 MiB in each of four pools"

    def source(self, sizes: Trial) -> str:
        return constants.SLEEP_POOLS.source

    def band(self, sizes: Trial, num_bytes: int) -> tuple[int, int]:
        if not num_bytes:
            return 0, 0
        return constants.SLEEP_POOLS.low_bytes, constants.SLEEP_POOLS.high_bytes
