"""Section: a training run: memory planned and measured, losses, quality of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from qserve.charts.spec import Colour, Line, Lines
from qserve.planner.training.training_constants import AFTER_LOADING_ON_CPU_BYTES
from qserve.report.blocks import Block, Code, Column, Figure, Row, Section, Table, Text, Tile, Tiles
from qserve.report.facts import RunReport
from qserve.report.smoothing import FEWEST_TO_SMOOTH, smoothed
from qserve.runs.verdict import advice_on, warning_of
from qserve.units import format_bytes, format_flops

__all__ = ["before_model_bytes", "training", "training_warnings"]

_MEMORY = (
    Column("term", "term"),
    Column("planned_bytes", "planned", "bytes"),
    Column("measured_bytes", "measured", "bytes"),
    Column("change", "difference", "change"),
)
_CURVE = (
    Column("step", "step", "count"),
    Column("loss", "loss", "number"),
    Column("learning_rate", "learning rate"),
    Column("accuracy", "accuracy", "share"),
    Column("step_s", "step", "s"),
)
_EVALUATIONS = (
    Column("step", "step", "count"),
    Column("loss", "loss", "number"),
    Column("accuracy", "accuracy", "share"),
    Column("margin", "margin", "number"),
)
_BY_LENGTH = (
    Column("tokens", "tokens"),
    Column("count", "pairs", "count"),
    Column("accuracy", "accuracy", "share"),
    Column("low", "at least (95 %)", "share"),
    Column("high", "at most", "share"),
)
_CALIBRATION = (
    Column("between", "confidence between"),
    Column("count", "pairs", "count"),
    Column("confidence", "mean confidence", "share"),
    Column("accuracy", "accuracy", "share"),
)
_BY_LABEL = (
    Column("name", "label"),
    Column("count", "texts", "count"),
    Column("mse", "mean squared error", "number"),
    Column("mean_mse", "error of the mean", "number"),
    Column("rank_correlation", "rank correlation", "number"),
)
_MOST_CHARACTERS = 300
_STATES = {"weights": "weights_bytes", "gradients": "gradients_bytes", "optimizer": "optimizer_bytes"}


def training(report: RunReport) -> Section | None:
    """Of the last result that the run kept; a run continued by `--resume` is a run of its own."""
    if not report.trainings:
        return None
    document = report.trainings[-1].document
    blocks: list[Block] = [Tiles("training", tuple(_tiles(document)))]
    if document["reason"]:
        blocks.append(Text(str(document["reason"]), is_warning=True))
    if warning := warning_of(document):
        blocks.append(Text(f"{warning} {advice_on(document)}", is_warning=True))
    if data := document.get("data"):
        blocks.append(Text("; ".join((data["told"], *data["notes"]))))
    if document["curve"]:
        blocks.append(_curve(document["curve"]))
    if document["measured"]:
        blocks.append(_memory(document))
    if document["evaluations"]:
        rows = tuple(_row(one, _EVALUATIONS) for one in document["evaluations"])
        blocks.append(Table("evaluations", "Evaluations", _EVALUATIONS, rows, "On held-out rows, by TRL's trainer."))
    blocks += _quality(document.get("quality"))
    blocks += _rollouts(document.get("rollouts"))
    blocks += _checked(document)
    blocks.append(Code("train.yaml", "TRL's configuration", tuple(document["configuration"].splitlines())))
    return Section("training", f"Training: {document['method']}", tuple(blocks))


def training_warnings(report: RunReport) -> list[str]:
    """What a reader of that section should not miss."""
    section = training(report)
    return [block.text for block in section.blocks if isinstance(block, Text) and block.is_warning] if section else []


def _tiles(document: Mapping[str, Any]) -> list[Tile]:
    curve = document["curve"]
    tiles = (
        [Tile("loss", curve[-1]["loss"], "number", f"{curve[0]['loss']:.4f} at the first step; {document['state']}")]
        if curve
        else []
    )
    held_out = document["held_out"]
    if "pairs" in held_out:
        tiles.append(
            Tile("held-out pairs right", held_out["right"] / held_out["pairs"], "share", f"of {held_out['pairs']:,}")
        )
    peak, planned = _peaks(document)
    if peak and planned:
        tiles.append(
            Tile(
                "peak memory",
                peak / planned - 1,
                "change",
                f"{format_bytes(peak)} measured, {format_bytes(planned)} planned",
            )
        )
    if document["tokens_per_s"]:
        tiles.append(Tile("tokens per second", document["tokens_per_s"], "rate", "without the first step"))
    if document.get("mfu"):
        speed, peak = document["flops_per_s"], document["flops_per_s"] / document["mfu"]
        remark = f"{format_flops(speed)} of the model alone; a large product ran at {format_flops(peak)} before the run"
        tiles.append(Tile("MFU", document["mfu"], "share", remark))
    if document.get("step_s"):
        tiles.append(Tile("a step", document["step_s"], "s", "median, without the first"))
    return tiles


def _peaks(document: Mapping[str, Any]) -> tuple[float, float]:
    measured, planned = document["measured"], document["planned"]["phases"]
    return max(measured.get("backward_bytes", 0), measured.get("step_bytes", 0)), max(planned.values(), default=0)


def _memory(document: Mapping[str, Any]) -> Table:
    measured, planned = document["measured"], document["planned"]
    rows = []
    for name, key in _STATES.items():
        terms = [size for term, size in planned["terms"].items() if term.startswith(f"{name} (")]
        reference = measured.get("reference_bytes", 0) if name == "weights" else 0
        held = measured.get(key)
        rows.append(_compared(name, sum(terms), None if held is None else held + reference))
    for phase, key in (("backward", "backward_bytes"), ("step", "step_bytes")):
        rows.append(_compared(f"{phase} phase, peak", planned["phases"].get(phase), measured.get(key)))
    rows.append(_compared("process before the model", before_model_bytes(document), measured.get("baseline_bytes")))
    how = f"Of the first device. Measured: {document['memory_source']}, and the sizes of the tensors."
    return Table("training memory", "Memory, planned and measured", _MEMORY, tuple(rows), how)


def before_model_bytes(document: Mapping[str, Any]) -> int | None:
    """Planned bytes of interpreter and libraries; None where the plan has no such term.

    On a CPU the term also holds what a process takes once its libraries are loaded.
    """
    runtime: int | None = document["planned"]["terms"].get("runtime")
    if runtime is None or document["job"]["device"] != "cpu":
        return runtime
    return max(0, runtime - AFTER_LOADING_ON_CPU_BYTES)


def _compared(name: str, planned: float | None, measured: float | None) -> tuple[Any, ...]:
    change = measured / planned - 1 if planned and measured else None
    return (name, planned, measured, change)


def _curve(points: list[Mapping[str, Any]]) -> Row:
    """The loss, and the accuracy if there is one: of single batches, so that the smoothed line tells the course."""
    steps = tuple(float(one["step"]) for one in points)
    rows = tuple(_row(one, _CURVE) for one in points)
    table = Table("curve", "Loss by step", _CURVE, rows, _steps_told(points), is_long=True)
    loss = Figure(_lines(steps, tuple(one["loss"] for one in points), "1", "number"), table)
    if not any("accuracy" in one for one in points):
        return Row((loss,))
    accuracy = _lines(steps, tuple(one.get("accuracy") for one in points), "2", "share")
    return Row((loss, Figure(accuracy, Table("", "Accuracy by step, each on its batch", (), ()))))


def _lines(
    steps: tuple[float, ...], values: tuple[float | None, ...], colour: Colour, kind: Literal["number", "share"]
) -> Lines:
    """A long run's curve is kept thinned: whatever its distance, points are joined."""
    each = Line("each step", colour, values, is_faint=len(values) >= FEWEST_TO_SMOOTH)
    lines = (each, Line("smoothed", colour, smoothed(values))) if each.is_faint else (each,)
    return Lines(steps, lines, kind, max(1.0, steps[-1] - steps[0]), "step")


def _steps_told(points: list[Mapping[str, Any]]) -> str:
    """A long run's curve is kept thinned."""
    num_steps = points[-1]["step"] - points[0]["step"] + 1
    return "Every step." if num_steps <= len(points) else f"{len(points)} of {num_steps:,} steps, evenly spaced."


def _quality(quality: Mapping[str, Any] | None) -> list[Block]:
    """Of held-out pairs. Documents of earlier releases have none."""
    if not quality:
        return []
    if "by_label" in quality:
        rows = tuple(tuple(one[column.key] for column in _BY_LABEL) for one in quality["by_label"])
        return [
            Table(
                "labels",
                "Scores by label",
                _BY_LABEL,
                rows,
                "Of held-out texts. Error of the mean: of giving every text the mean score.",
            )
        ]
    rows = tuple(
        (f"{one['shortest']:,} to {one['longest']:,}", one["count"], one["accuracy"], one["low"], one["high"])
        for one in quality["by_length"]
    )
    bins = tuple(
        (f"{one['low']:.2f} to {one['high']:.2f}", one["count"], one["confidence"], one["accuracy"])
        for one in quality["calibration"]["bins"]
    )
    error = (
        f"Expected calibration error {quality['calibration']['error']:.3f}. Confidence is the sigmoid of the margin."
    )
    return [
        Table("accuracy by length", "Accuracy by length", _BY_LENGTH, rows, "Of held-out pairs, by the longer answer."),
        Table("calibration", "Calibration", _CALIBRATION, bins, error),
    ]


def _rollouts(steps: list[Mapping[str, Any]] | None) -> list[Block]:
    """What the policy wrote at some steps. Documents of earlier releases have none."""
    if not steps:
        return []
    names = tuple(steps[0]["samples"][0]["rewards"])
    names = names if len(names) > 1 else ()
    columns = (
        Column("step", "step", "count"),
        Column("prompt", "prompt", "prose"),
        Column("completion", "answer", "prose"),
        Column("reward", "reward", "number"),
        *(Column(f"rewards/{name}", name, "number") for name in names),
    )
    rows = tuple(
        (
            step["step"],
            _shortened(one["prompt"]),
            _shortened(one["completion"]),
            one["reward"],
            *(one["rewards"].get(name) for name in names),
        )
        for step in steps
        for one in step["samples"]
    )
    how = "Answers to one prompt a step, sampled while the policy was trained. The reward is the weighted sum."
    return [Table("rollouts", "Rollouts", columns, rows, how)]


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]} …"


def _row(one: Mapping[str, Any], columns: tuple[Column, ...]) -> tuple[Any, ...]:
    return tuple(
        f"{one['learning_rate']:.2e}" if c.key == "learning_rate" and c.key in one else one.get(c.key) for c in columns
    )


def _checked(document: Mapping[str, Any]) -> list[Block]:
    check = document["check"]
    if not check:
        return []
    if "error" in check:
        return [Text(f"The saved model could not be scored: {check['error']}", is_warning=True)]
    return [
        Text(
            f"Rewards of the saved checkpoint differ by {check['largest_difference']:.1e} at most from the trainer's "
            f"on {check['num_texts']} held-out texts (standard deviation {check['spread']:.3g})"
            + (f"; {check['num_flipped']} of {check['num_pairs']} pairs change order." if check["num_pairs"] else ".")
        )
    ]
