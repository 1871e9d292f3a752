"""The folder of a run, new or resumed, and the command that starts a run again."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from qserve.cli.command_line import shell_text
from qserve.errors import UsageError
from qserve.training.checkpoints import ResumableRun, resumable_runs
from qserve.training.data.prepare import BROKEN
from qserve.training.job import TrainingRun

__all__ = ["again_command", "check_output", "new_output", "newest_resumable", "remove_unstarted", "unstarted_removed"]

_MOST_LISTED = 5
_TIMES_LONGER = 3


def new_output(state: Path, method: str) -> Path:
    """Below the state folder."""
    return (state / "training" / f"{method}-{time.strftime('%Y%m%d-%H%M%S')}").absolute()


def newest_resumable(state: Path, run: TrainingRun) -> Path:
    """The folder of the newest stopped run that was started with the same flags.

    Raises UsageError with the runs that can be resumed where none is this one.
    """
    found = tuple(resumable_runs(state))
    same = next((one for one in found if not run.changes_since(one.job)), None)
    if same is not None:
        return same.output
    if not found:
        raise UsageError(f"--resume: no stopped run is stored in {state}; start one without --resume, or name --output")
    listed = "".join(f"\n  {_described(one)}" for one in found[:_MOST_LISTED])
    raise UsageError(
        "--resume: no stopped run was started with these flags. Repeat the flags of one of these, or name its folder "
        f"with --output:{listed}"
    )


def _described(run: ResumableRun) -> str:
    saved = "nothing saved" if run.step is None else f"saved at step {run.step:,} of {run.num_steps or 0:,}"
    return f"{run.output} ({run.job.method} of {run.job.model}, {saved})"


def check_output(run: TrainingRun, resume: bool) -> None:
    """Raises UsageError for a folder with another run, or with this one where --resume is missing."""
    earlier = run.folder / "job.json"
    if not resume:
        if run.output.exists() and any(path not in _left_by_refusal(run) for path in _held_by(run)):
            what = "has a run already: resume it with --resume" if earlier.exists() else "is not empty"
            raise UsageError(f"{run.output} {what}, or name another --output")
        return
    if not earlier.exists():
        raise UsageError(f"{run.output} has no run to resume; start one without --resume")
    changed = run.changes_since(TrainingRun.read(earlier))
    if changed:
        raise UsageError(
            f"--resume continues the run in {run.output}, and this command differs from it in {', '.join(changed)}; "
            "give the flags that it was started with (steps, epochs and how often it saves may change)"
        )


def _held_by(run: TrainingRun) -> tuple[Path, ...]:
    return *run.output.iterdir(), *run.folder.glob("*")


def _left_by_refusal(run: TrainingRun) -> tuple[Path, Path]:
    """What `unstarted_removed` leaves of a run whose data was refused."""
    return run.folder, run.folder / BROKEN


@contextlib.contextmanager
def unstarted_removed(run: TrainingRun) -> Iterator[None]:
    """Around what prepares a run, up to where it is written: if that fails or is stopped, the same command starts it.

    The list of broken rows stays where the data was refused, to mend it by.
    """
    try:
        yield
    except BaseException as error:
        remove_unstarted(run, leaves=_left_by_refusal(run) if isinstance(error, UsageError) else ())
        raise


def remove_unstarted(run: TrainingRun, leaves: Collection[Path] = ()) -> None:
    """Removes what was prepared for a run that did not begin, but `leaves`; of a run that is resumed, nothing."""
    if (run.folder / "job.json").exists():  # resumed
        return
    fresh = run.data_folder.with_name(f".{run.data_folder.name}-fresh")
    for path in (run.data_folder, fresh, *run.folder.glob("*")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path not in leaves:
            path.unlink(missing_ok=True)
    for folder in (run.folder, run.output):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def again_command(epochs: float, typed: Sequence[str] | None = None) -> str:
    """What was typed, three times as long and into a new folder; no secret is in it."""
    words, kept = sys.argv[1:] if typed is None else typed, ["qserve"]
    longer = {"--epochs": f"{_TIMES_LONGER * epochs:g}"}
    it = iter(words)
    for word in it:
        name, mark, value = word.partition("=")
        if name == "--resume":
            continue
        if name in ("--output", "--epochs", "--max-steps"):
            value = value if mark else next(it, "")
            if name == "--max-steps":
                longer = {"--max-steps": str(_TIMES_LONGER * int(value))}
            continue
        kept.append(word)
    return shell_text([*kept, *next(iter(longer.items()))])
