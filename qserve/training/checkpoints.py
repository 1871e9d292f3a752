"""What a stopped run can be resumed from: its checkpoints on disk, and the stopped runs of a run store."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qserve.errors import UsageError
from qserve.runs import RunStore
from qserve.training.job import TrainingRun

__all__ = ["ResumableRun", "last_checkpoint", "resumable_runs"]

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True)
class ResumableRun:
    """A run that has not done all of its steps, and the job that started it; `step` is that of its last checkpoint
    (None: it has none).
    """

    output: Path
    job: TrainingRun
    step: int | None
    num_steps: int | None


def last_checkpoint(output: Path) -> int | None:
    """The step of the newest whole checkpoint; None where there is none."""
    names = (_CHECKPOINT.fullmatch(folder.name) for folder in output.glob("checkpoint-*"))
    return max((int(name[1]) for name in names if name), default=None)


def resumable_runs(state_folder: Path) -> Iterator[ResumableRun]:
    """Newest first, each folder once: stopped, failed or killed, and still on disk. One whose job can't be read, as of
    another release, can't be resumed and is left out.

    Raises StoreUnusable where the store can't be read.
    """
    if (store := RunStore.open_existing(state_folder)) is None:
        return
    seen = set[Path]()
    for one in store.training_list():
        kept = store.trainings(one.id)
        if not kept or (output := Path(kept[-1].document["output"])) in seen:
            continue
        seen.add(output)
        document = kept[-1].document
        if one.state != "running" and document["state"] != "ended" and (job := _readable_job(output)) is not None:
            yield ResumableRun(output, job, last_checkpoint(output), document.get("num_steps"))


def _readable_job(output: Path) -> TrainingRun | None:
    with contextlib.suppress(UsageError):
        return TrainingRun.read(output / "run" / "job.json")
    return None
