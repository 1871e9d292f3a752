"""Progress of a training run on standard error: what it is doing, its evaluations, and what a signal does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from qserve.cli.progress import ProgressLine

if TYPE_CHECKING:
    from qserve.training.launch import Launched
    from qserve.training.stop_signals import StopSignals

__all__ = ["follow"]

Event = dict[str, Any]
# What begins when an event is told.
_PHASES = {
    "imported": "loading the model",
    "model saved": "ending",
    "held out": "saving the model",
    "stopping": "saving",
}
_EVALUATED = (
    ("eval_loss", "loss"),
    ("eval_accuracy", "accuracy"),
    ("eval_rewards/accuracies", "accuracy"),
    ("eval_margin", "margin"),
)


def follow(
    launched: Launched, keep: Callable[[list[Event]], None], line: ProgressLine, stop: StopSignals
) -> tuple[list[Event], int]:
    """(all events, exit status). `keep` is told all events so far, after each; `stop` is counting."""
    events: list[Event] = []
    total = 0
    line.phase("loading torch and TRL")

    def show(event: Event) -> None:
        nonlocal total
        events.append(event)
        keep(events)
        kind = event["event"]
        if kind == "train":
            total = event["to_step"]
            line.phase("training")
            line.begin_at(event["from_step"])
        elif kind == "logged" and event.get("loss") is not None and not stop.count:
            line.count(event["step"], total, f"loss {event['loss']:.4f}")
            if event["step"] == total:
                line.phase("evaluating")
        elif kind in _PHASES:
            line.phase(_PHASES[kind])
        if text := _line(event):
            line.say(text)

    return events, launched.follow(show, stop)


def _line(event: Mapping[str, Any]) -> str | None:
    """What is worth a line that stays."""
    kind = event["event"]
    if kind == "evaluated":
        given = [(name, event[key]) for key, name in _EVALUATED if isinstance(event.get(key), int | float)]
        return f"step {event['step']}: held-out {', '.join(f'{name} {value:.4f}' for name, value in given)}"
    if kind == "loaded" and event.get("num_ties"):
        return f"{event['num_ties']:,} pairs have the same tokens on both sides: left out of the loss and the accuracy"
    if kind == "stopping":
        return "Stopping after this step, which is saved. Ctrl-C again stops now, without saving."
    return None
