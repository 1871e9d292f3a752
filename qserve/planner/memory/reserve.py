"""Memory of a machine that stays free: in plans, and what a running service does as it is used up. Pure arithmetic.

Where a GPU shares the RAM, the shares are those of earlyoom, which says it is low at 10 % and kills at 5 %: below that
a DGX Spark (GB10) does not fail an allocation, it freezes. Seen there: 7 of 119 GiB left and the host was gone
(vllm#46307); from 29 to 2.5 GiB within 9 s (vllm#54200); from 34 to 12.7 GiB within 1.5 s, where the driver had no
memory any more (NVIDIA/dgx-spark-playbooks#116). A plan leaves those 10 %, so that a service as planned is never low.

Elsewhere only RAM is short, which the kernel takes back page by page and where it ends a process (the OOM killer) a
few dozen MiB before the end: a fiftieth is enough to be there before it, 2 GiB at most. Less than 96 MiB is reached
between two looks, and no service fits into so little.
"""

from __future__ import annotations

from dataclasses import dataclass

from qserve.units import GIB, MIB

__all__ = ["Reserve"]

_SHARED_PLANNED = 0.1
_OWN_REFUSE, _OWN_LEAST, _OWN_MOST = 0.02, 96 * MIB, 2 * GIB
# Of what new requests are refused below. 10 % planned and 5 % for the end, where a GPU shares the RAM, give 7.5 %.
_PLANNED, _RECOVER, _DRAIN, _END = 4 / 3, 6 / 5, 5 / 6, 2 / 3


@dataclass(frozen=True)
class Reserve:
    """How much of one memory stays free; each step begins below its bytes.

    Attributes:
        refuse_bytes: no new requests; running ones go on.
    """

    refuse_bytes: int

    @classmethod
    def of(cls, total_bytes: int, *, shares_gpu: bool, asked_bytes: int | None = None) -> Reserve:
        """Of `total_bytes`. `shares_gpu`: a GPU has its memory in it. `asked_bytes`: --min-free-ram, in its place."""
        if asked_bytes is not None:
            return cls(asked_bytes)
        if shares_gpu:
            return cls(int(total_bytes * _SHARED_PLANNED / _PLANNED))
        return cls(int(min(_OWN_MOST, max(_OWN_LEAST, total_bytes * _OWN_REFUSE))))

    @property
    def planned_bytes(self) -> int:
        """What a plan leaves: a third more than `refuse_bytes`, since plans are off by a few percent."""
        return int(self.refuse_bytes * _PLANNED)

    @property
    def recover_bytes(self) -> int:
        """New requests are taken again from here on: not where they were refused, or both would alternate."""
        return int(self.refuse_bytes * _RECOVER)

    @property
    def drain_bytes(self) -> int:
        """A worker that outgrew its plan is restarted once its requests are over."""
        return int(self.refuse_bytes * _DRAIN)

    @property
    def end_bytes(self) -> int:
        """A worker is ended."""
        return int(self.refuse_bytes * _END)
