"""How a run ended, in words: from its events, its exit status and its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qserve.planner.training import TrainingJob, cheaper
from qserve.worker.process import death_of

__all__ = ["Outcome", "outcome_of", "so_far"]

_KILLED = -9


@dataclass(frozen=True)
class Outcome:
    """`state`: running, ended, stopped (on request, to be resumed) or failed; `reason` of a failure, with what to do.

    `events` are those of this start; `measured` is the highest of each figure that was measured.
    """

    state: str
    events: Sequence[Mapping[str, Any]]
    reason: str | None = None
    measured: Mapping[str, float] = field(default_factory=dict)

    @property
    def losses(self) -> list[tuple[int, float]]:
        """(step, loss) of every step that was logged; None values are left out."""
        return [
            (one["step"], one["loss"])
            for one in self.events
            if one["event"] == "logged" and one.get("loss") is not None
        ]

    @property
    def evaluations(self) -> list[Mapping[str, Any]]:
        return [one for one in self.events if one["event"] == "evaluated"]

    def last(self, event: str) -> Mapping[str, Any] | None:
        return next((one for one in reversed(self.events) if one["event"] == event), None)


def so_far(events: Sequence[Mapping[str, Any]]) -> Outcome:
    """Of a run that goes on."""
    return Outcome("running", events, None, _measured(events))


def outcome_of(
    events: Sequence[Mapping[str, Any]], status: int, log: Path, job: TrainingJob, *, was_stopped: bool = False
) -> Outcome:
    """`job` is what was planned: an out-of-memory run is told which lever of it to pull.

    `was_stopped`: somebody stopped the run, so that whatever status it ended with is no failure.
    """
    last = {one["event"] for one in events}
    if "ended" in last and status == 0:
        return Outcome("ended", events, None, _measured(events))
    if "stopped" in last and status == 0:
        return Outcome("stopped", events, None, _measured(events))
    failed = next((one for one in reversed(events) if one["event"] == "failed"), None)
    if failed is not None and failed["kind"] == "memory":
        reason = f"out of memory ({failed['reason']}). {_lever(job)}"
    elif failed is not None:
        reason = str(failed["reason"])
    elif was_stopped:
        return Outcome("stopped", events, None, _measured(events))
    elif status in (_KILLED, 128 - _KILLED):
        reason = f"{death_of(_KILLED)}. {_lever(job)}"
    else:
        reason = f"the process that trains ended with status {status}; the end of {log}:\n{_end_of(log)}"
    return Outcome("failed", events, reason, _measured(events))


def _lever(job: TrainingJob) -> str:
    levers = cheaper(job)[:2]
    if not levers:
        return "The plan can be reduced no further; take a larger card, or fewer tokens (--max-length)"
    changes = "; then ".join(f"{lever.change} ({lever.cost})" for lever in levers)
    return f"What to change first: {changes}"


def _measured(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The highest of every figure of memory, over the steps that were measured."""
    most: dict[str, float] = {}
    for one in events:
        if one["event"] == "memory":
            for name, value in one.items():
                if name.endswith("_bytes") and isinstance(value, int | float):
                    most[name] = max(value, most.get(name, 0))
    loaded = next((one for one in reversed(events) if one["event"] == "loaded"), None)
    if loaded is None:
        return most
    return most | {"load_bytes": loaded["peak_bytes"], "reference_bytes": loaded.get("reference_bytes", 0)}


def _end_of(log: Path) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    except OSError:
        return "(no log)"
