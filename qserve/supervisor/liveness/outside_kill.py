"""Whether a worker was killed from outside, so that none of its requests is to blame.

SIGKILL comes from people and other programs, from the kernel when memory runs out, or from a program that watches
memory in its place (earlyoom, systemd-oomd). The kernel counts what it kills, and memory that runs short stalls
programs first. Where neither was the case, it was somebody else.
"""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MemoryKills"]

_COUNT, _STALLS = Path("/proc/vmstat"), Path("/proc/pressure/memory")
_MOST_STALLED = 1.0
"""Percent of the last ten seconds in which some program waited for memory."""


@dataclass(frozen=True)
class MemoryKills:
    """What the kernel has killed for want of memory, on the whole machine; None where it does not say."""

    count: int | None

    @classmethod
    def until_now(cls, vmstat: Path = _COUNT) -> MemoryKills:
        """Read now."""
        with contextlib.suppress(OSError, ValueError):
            for line in vmstat.read_text().splitlines():
                name, _, number = line.partition(" ")
                if name == "oom_kill":
                    return cls(int(number))
        return cls(None)

    def rule_out(self, returncode: int, vmstat: Path = _COUNT, stalls: Path = _STALLS) -> bool:
        """Whether a process that ran since then, and ended with `returncode`, was killed for another reason."""
        if returncode != -signal.SIGKILL or self.count is None or self != self.until_now(vmstat):
            return False
        return _stalled_percent(stalls) <= _MOST_STALLED


def _stalled_percent(stalls: Path) -> float:
    """0 where the kernel does not measure it: then nothing there acts on it either."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return float(stalls.read_text().split("avg10=", 1)[1].split()[0])
    return 0.0
