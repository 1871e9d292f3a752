"""`qserve` whose plans for vLLM have a cache that is smaller than one request: as if the planner had been wrong.

python overdrawn.py up --engine vllm --max-model-len 2048 …
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qserve.cli.main import main
from qserve.engines.vllm.launch import server as launch
from qserve.planner import Plan
from qserve.worker.launch import Launch
from qserve.worker.process import WorkerSpec

CACHE_TOKENS = 15 * 128
"""Whole blocks of vLLM on a CPU."""


def overdrawn(plan: Plan) -> Plan:
    """The same with a cache of `CACHE_TOKENS`."""
    cache_bytes = plan.placement.kv_cache_memory_bytes * CACHE_TOKENS // plan.kv_cache_tokens
    flag = plan.engine_args.index("--kv-cache-memory-bytes") + 1
    return replace(
        plan,
        placement=replace(plan.placement, kv_cache_memory_bytes=cache_bytes),
        kv_cache_tokens=CACHE_TOKENS,
        engine_args=(*plan.engine_args[:flag], str(cache_bytes), *plan.engine_args[flag + 1 :]),
    )


class OverdrawnLaunch(launch.VllmLaunch):
    """What `qserve up` starts in place of the plan's."""

    @classmethod
    def serving(cls, spec: WorkerSpec, file: Path, engine_args: str) -> Launch:
        return super().serving(replace(spec, plan=overdrawn(spec.plan)), file, engine_args)


if __name__ == "__main__":
    launch.VllmLaunch = OverdrawnLaunch
    main()
