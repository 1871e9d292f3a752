"""What a plan for a card that no engine of qserve runs on has to say, first of all that it is one."""

from __future__ import annotations

from collections.abc import Iterator

from qserve.core.plan_only import backend_of
from qserve.planner.candidate import Candidate
from qserve.planner.plan import Plan
from qserve.units import format_bytes

__all__ = ["notes_on"]


def notes_on(candidate: Candidate, plan: Plan) -> Iterator[str]:
    """The most important first."""
    device = candidate.devices[0]
    backend = backend_of(device.kind)
    yield f"Plan only: {backend.why_no_engine(device.name)}"
    low, _, high = backend.shares
    yield (
        f"Rough: bytes of weights and KV cache are counted, what an engine holds beside them is a guess, and the speed "
        f"is what {100 * low:.0f} to {100 * high:.0f} % of the memory's bandwidth would give; nothing was measured here"
    )
    if device.shares_ram:
        yield (
            f"Memory is shared with the CPU: macOS lets the GPU take {format_bytes(device.total_bytes)}; sysctl's "
            "iogpu.wired_limit_mb raises that, and --gpu like=NAME,memory=SIZE plans it"
        )
    if candidate.num_ranks > 1:
        yield "What the cards exchange takes time that is not counted"
