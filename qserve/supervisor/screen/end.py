"""What `qserve up` prints last: whether every request was answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qserve.units import counted

__all__ = ["End"]


@dataclass(frozen=True)
class End:
    """How a service ended.

    Attributes:
        num_cut_off: requests that a worker did not answer to the end, because it ended.
        num_left: those that were still running when the time for them was over, or at the second Ctrl-C.
    """

    num_cut_off: int = 0
    num_left: int = 0

    @property
    def exit_status(self) -> int:
        return 1 if self.num_cut_off or self.num_left else 0

    def lines(self, run: str) -> Iterator[str]:
        """The result, and where to read more of run `run` if there were failures."""
        if not self.exit_status:
            yield "stopped; every request was answered"
            return
        total = self.num_cut_off + self.num_left
        reasons = {"because a worker ended": self.num_cut_off, "by the stop": self.num_left}
        parts = [f"{count:,} {reason}" for reason, count in reasons.items() if count]
        why = f": {', '.join(parts)}" if len(parts) > 1 else f" {parts[0].partition(' ')[2]}"
        yield f"stopped; {counted(total, 'request')} {'was' if total == 1 else 'were'} cut off{why}"
        yield f"qserve runs show {run} shows why"
