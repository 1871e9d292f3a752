"""Terminal output of a training run: a progress bar with the loss, and a summary at its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from qserve.training.quality import quality_in
from qserve.units import format_bytes

if TYPE_CHECKING:
    from qserve.training.job import TrainingRun
    from qserve.training.launch import Launched
    from qserve.training.outcome import Outcome

__all__ = ["follow", "show_summary"]

Event = dict[str, Any]


def follow(launched: Launched, keep: Callable[[list[Event]], None]) -> tuple[list[Event], int]:
    """(all events, exit status). On a terminal a bar; elsewhere a line for each evaluation and save.

    `keep` is told all events so far, after each.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    events: list[Event] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True, disable=not sys.stdout.isatty()) as bar:
        task = bar.add_task("loading", total=None)

        def show(event: Event) -> None:
            events.append(event)
            keep(events)
            if event["event"] == "train":
                bar.update(task, description="training", total=event["to_step"], completed=event["from_step"])
            elif event["event"] == "logged" and event.get("loss") is not None:
                bar.update(task, description=f"loss {event['loss']:.4f}", completed=event["step"])
            line = _line(event)
            if line:
                bar.console.print(line, markup=False, highlight=False, soft_wrap=True)

        status = launched.follow(show)
    return events, status


def _line(event: Mapping[str, Any]) -> str | None:
    """What is worth a line of its own."""
    kind = event["event"]
    if kind == "evaluated":
        shown = [
            ("eval_loss", "loss"),
            ("eval_accuracy", "accuracy"),
            ("eval_rewards/accuracies", "accuracy"),
            ("eval_margin", "margin"),
        ]
        given = [(name, event[key]) for key, name in shown if isinstance(event.get(key), int | float)]
        figures = ", ".join(f"{name} {value:.4f}" for name, value in given)
        return f"step {event['step']}: evaluated, {figures}"
    if kind == "loaded" and event.get("num_ties"):
        return f"{event['num_ties']:,} pairs are the same tokens on both sides: ties, in no loss and in no accuracy"
    if kind == "stopping":
        return "stopping: this step ends and is saved (Ctrl-C again ends it now)"
    return None


def show_summary(run: TrainingRun, outcome: Outcome, check: Mapping[str, Any] | None, kept: str | None) -> None:
    """The end in a few lines; a failure's reason goes to standard error."""
    if outcome.state == "failed":
        click.secho(f"qserve: {outcome.reason}", err=True, fg="red")
    else:
        for line in _summary(run, outcome, check):
            click.echo(line)
    if kept:
        click.echo(f"the whole story: qserve report {kept}")


def _summary(run: TrainingRun, outcome: Outcome, check: Mapping[str, Any] | None) -> list[str]:
    if outcome.state == "stopped":
        step = (outcome.last("stopped") or {}).get("step")
        return [f"stopped after step {step} and saved; --resume goes on"]
    lines = []
    losses = outcome.losses
    if losses:
        lines.append(f"loss {losses[0][1]:.4f} at step {losses[0][0]}, {losses[-1][1]:.4f} at step {losses[-1][0]}")
    held_out = outcome.last("held out")
    if run.data.labels:
        lines += _label_rows(quality_in(run.folder / "held_out.jsonl", run.data.labels))
    elif held_out:
        share = held_out["right"] / held_out["pairs"]
        lines.append(f"held-out pairs right: {held_out['right']} of {held_out['pairs']} ({share:.1%})")
        lines += _quality_rows(quality_in(run.folder / "held_out.jsonl"))
    if check and "error" in check:
        lines.append(f"reward check: the saved checkpoint could not be scored: {check['error']}")
    elif check:
        lines.append(
            f"reward check: the saved checkpoint scores {check['num_texts']} held-out texts within "
            f"{check['largest_difference']:.1e} of the trainer"
            + (f", {check['num_flipped']} of {check['num_pairs']} pairs turned around" if check["num_pairs"] else "")
        )
    measured = outcome.measured
    if "backward_bytes" in measured:
        peak = max(measured["backward_bytes"], measured.get("step_bytes", 0))
        planned = max(run.plan["devices"][0]["phases"].values()) - _others(run.plan)
        lines.append(f"peak memory {format_bytes(peak)}, planned {format_bytes(planned)}")
    serve = "--reward" if run.trainer == "reward" else "--model"
    lines.append(f"the model is in {run.output}: qserve up {serve} {run.output}")
    return lines


def _label_rows(quality: Mapping[str, Any] | None) -> list[str]:
    """Of each label how far the model's scores are off, beside how far their mean would be."""
    return [
        f"held-out {one['name']}: mean squared error {one['mse']:.3g} (of the mean score {one['mean_mse']:.3g})"
        + (f", rank correlation {one['rank_correlation']:.2f}" if one["rank_correlation"] is not None else "")
        for one in (quality or {}).get("by_label", ())
    ]


def _quality_rows(quality: Mapping[str, Any] | None) -> list[str]:
    if quality is None or len(quality["by_length"]) < 2:
        return []
    buckets = ", ".join(
        f"{one['shortest']}-{one['longest']} tokens {one['accuracy']:.1%}" for one in quality["by_length"]
    )
    return [f"by length: {buckets}; calibration error {quality['calibration']['error']:.3f}"]


def _others(plan: Mapping[str, Any]) -> int:
    return sum(term["num_bytes"] for term in plan["devices"][0]["terms"] if term["name"] == "others")
