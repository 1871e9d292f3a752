"""What `qserve train` prints at its end: what came of the run, what to mind, and the command that comes next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from qserve.runs.training_commands import load_command, serve_command
from qserve.runs.verdict import advice_on, warning_of
from qserve.terminal.console import Hanging, console_of
from qserve.units import format_bytes

__all__ = ["Ended", "show_summary", "summary_json"]

_WIDTH = 9
_LEFT_OUT = ("job", "configuration", "accelerate", "curve", "rollouts", "planned", "memory_source")


@dataclass(frozen=True)
class Ended:
    """A run that is over: its document as the store keeps it, and the commands that may come next.

    `checkpoint` is the step of its last one; `again` the command that starts it once more in a new folder; `report` its
    id where it was kept.
    """

    document: Mapping[str, Any]
    checkpoint: int | None
    resume: str
    again: str
    report: str | None

    @property
    def next_command(self) -> str:
        """Serve it, resume it, or train again what learned nothing."""
        if self.document["state"] != "ended":
            return self.resume
        return self.again if warning_of(self.document) else self.serve

    @property
    def serve(self) -> str:
        return serve_command(self.document["method"], self.document["output"])


def show_summary(ended: Ended, console: Console | None = None) -> None:
    """In a few lines. Commands are not cut into lines: they are to be copied."""
    console = console or console_of()
    for label, text in _rows(ended):
        marker = f"{label:<{_WIDTH}}"
        style = "yellow" if label == "Warning" else ""
        if label in ("Next", "Then", "Or", "Report", "Model"):
            console.print(Text(marker + text, style=style), soft_wrap=True)
        else:
            console.print(Hanging(text, marker, style))


def summary_json(ended: Ended, exit_status: int) -> dict[str, Any]:
    """What --json prints: the run's document without its curve and configuration."""
    kept = {name: value for name, value in ended.document.items() if name not in _LEFT_OUT}
    losses = [point["loss"] for point in ended.document["curve"] if "loss" in point]
    return {
        **kept,
        "run": ended.report,
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "warning": warning_of(ended.document),
        "checkpoint_step": ended.checkpoint,
        "next_command": ended.next_command,
        "exit_status": exit_status,
    }


def _rows(ended: Ended) -> Iterator[tuple[str, str]]:
    document = ended.document
    if document["state"] == "failed":
        yield "Failed", str(document["reason"])
    if document["state"] == "stopped":
        yield "Stopped", _stopped_at(document)
    if document["state"] != "ended":
        yield "Saved", _saved(ended)
        yield "Folder", document["output"]
        yield "Next", ended.resume
    else:
        yield from _results(document)
        yield "Model", document["output"]
        yield from _next(ended)
    if ended.report:
        yield "Report", f"qserve report {ended.report}"


def _stopped_at(document: Mapping[str, Any]) -> str:
    if not document["step"]:
        return "before the first step"
    return f"after step {document['step']:,} of {document['num_steps'] or 0:,}"


def _saved(ended: Ended) -> str:
    if ended.checkpoint is None:
        return "nothing: no checkpoint was reached"
    return f"checkpoint of step {ended.checkpoint:,}"


def _next(ended: Ended) -> Iterator[tuple[str, str]]:
    warning = warning_of(ended.document)
    if warning is None:
        yield "Next", ended.serve
        if (load := load_command(ended.document["method"], ended.document["output"])) is not None:
            yield "Then", load
        return
    yield "Warning", warning
    yield "Advice", advice_on(ended.document)
    yield "Next", ended.again
    yield "Or", ended.serve


def _results(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    losses = [(point["step"], point["loss"]) for point in document["curve"] if "loss" in point]
    if losses:
        (first, at_first), (last, at_last) = losses[0], losses[-1]
        yield "Loss", f"{at_first:.4f} at step {first:,}, {at_last:.4f} at step {last:,}"
    held_out, quality = document["held_out"], document["quality"] or {}
    if "pairs" in held_out:
        between = f"95 % interval {100 * held_out['low']:.0f} to {100 * held_out['high']:.0f} %"
        right = f"{held_out['right']:,} of {held_out['pairs']:,} pairs right"
        yield "Held out", f"{right}: {100 * held_out['accuracy']:.1f} % ({between})"
    yield from _by_length(quality.get("by_length", ()))
    if "calibration" in quality:
        yield "", f"calibration error {quality['calibration']['error']:.3f}"
    for one in quality.get("by_label", ()):
        rank = one["rank_correlation"]
        error = f"{one['name']}: mean squared error {one['mse']:.3g}, of the mean score {one['mean_mse']:.3g}"
        yield "Held out", error + (f", rank correlation {rank:.2f}" if rank is not None else "")
    if document["check"]:
        yield "Check", _checked(document["check"])
    peak = max(document["measured"].get("backward_bytes", 0), document["measured"].get("step_bytes", 0))
    if peak:
        planned = max(document["planned"]["phases"].values())
        yield "Memory", f"{format_bytes(peak)} at most; planned {format_bytes(planned)}"


def _by_length(buckets: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    if len(buckets) > 1:
        parts = (f"{one['shortest']}–{one['longest']} tokens {100 * one['accuracy']:.1f} %" for one in buckets)
        yield "", f"by length: {', '.join(parts)}"


def _checked(check: Mapping[str, Any]) -> str:
    if "error" in check:
        return f"the saved model could not be scored: {check['error']}"
    same = f"the saved model scores {check['num_texts']} held-out texts as the trainer did"
    same += f" (within {check['largest_difference']:.1e})"
    return same + (f"; {check['num_flipped']} of {check['num_pairs']} pairs differ" if check["num_pairs"] else "")
