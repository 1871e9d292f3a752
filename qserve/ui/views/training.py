"""A training run as pictures and tables: how far it is, its curves, what fills the card, rollouts, how to run it again.

Pure: of the run's document, as GET /v1/qserve/runs/{run} answers it, HTML. What a model wrote is text here, never HTML.
"""

from __future__ import annotations

import html
import itertools
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from qserve.charts.html import draw, figure
from qserve.charts.spec import TERM_COLOURS, Bar, Colour, Line, Lines, Segment, StackedBars
from qserve.planner.training.training_defaults import EXAMPLE
from qserve.report.sections.training import before_model_bytes
from qserve.report.smoothing import FEWEST_TO_SMOOTH, smoothed
from qserve.runs.verdict import advice_on, warning_of
from qserve.ui.strings import heading, translate
from qserve.ui.strings.sentences import shown
from qserve.ui.views.command import command_view
from qserve.ui.views.durations import difference, duration
from qserve.ui.views.failures import refusal_view
from qserve.ui.views.tables import table, tiles
from qserve.units import format_bytes

__all__ = [
    "configuration_view",
    "curves_view",
    "first_run_view",
    "head_view",
    "held_view",
    "rollouts_view",
    "state_text",
]

_MOST_CHARACTERS = 600
_OF_STEPS = 6
_LEAST_PLAIN = 1e-3
# Where less of the card is used, a bar over all of it would show nothing.
_LEAST_SHARE = 0.25
# By the first word of a term of the plan; what is not here counts as the runtime.
_PARTS = {
    "weights": "weights",
    "gathered": "gathered",
    "buckets": "gathered",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations": "activations",
    "recomputed": "activations",
    "layer": "activations",
    "logits": "activations",
    "embedding": "activations",
    "fragmentation": "activations",
    "vllm": "kv_cache",
    "others": "used_by_others",
}
_CURVE_COLOURS: tuple[Colour, ...] = ("1", "3")
_ORDER = ("weights", "gradients", "optimizer", "gathered", "activations", "kv_cache", "runtime", "used_by_others")
_STATE_NAMES = {
    "running": "train.running",
    "ended": "train.ended",
    "stopped": "train.stopped",
    "failed": "train.failed",
    "died": "train.died",
}
_NUMBER = 'class="qs-number"'
_STATES = {"weights": "weights_bytes", "gradients": "gradients_bytes", "optimizer": "optimizer_bytes"}


def head_view(document: Mapping[str, Any], state: str, language: str) -> str:
    """How far, how good and how fast; why it failed, where it did."""
    curve = document["curve"]
    last = curve[-1] if curve else {}
    figures = [(heading(language, "train.state"), state_text(state, language))]
    if document.get("step") is not None:
        figures.append((heading(language, "train.step"), f"{document['step']:,} / {document['num_steps'] or 0:,}"))
    named = (("loss", _number), ("reward", _number), ("accuracy", _percent), ("learning_rate", _number))
    figures += [(heading(language, f"train.{name}"), show(last[name])) for name, show in named if name in last]
    if document["held_out"].get("pairs"):
        share = document["held_out"]["right"] / document["held_out"]["pairs"]
        figures.append((heading(language, "train.held_out"), _percent(share)))
    if document["tokens_per_s"]:
        figures.append((heading(language, "train.tokens_per_s"), f"{document['tokens_per_s']:,.0f}"))
    if document["step_s"]:
        figures.append((heading(language, "train.step_s"), duration(document["step_s"])))
        left = (document["num_steps"] or 0) - (document["step"] or 0)
        if state == "running" and left > 0:
            figures.append((heading(language, "train.left"), duration(left * document["step_s"])))
    if document["mfu"]:
        figures.append(("MFU", _percent(document["mfu"])))
    why = refusal_view(str(document["reason"]), language, "train.failed_because") if document["reason"] else ""
    return why + _warning(document, language) + tiles(figures)


def _warning(document: Mapping[str, Any], language: str) -> str:
    """That the model learned nothing, and what to try first; "" of one that did."""
    warning = warning_of(document)
    if warning is None:
        return ""
    told = html.escape(f"{shown(language, warning)} {shown(language, advice_on(document))}")
    return f'<div class="qs-error" role="alert">{told}</div>'


def curves_view(document: Mapping[str, Any], language: str) -> str:
    """Loss, reward or accuracy, learning rate and tokens a second, each by step."""
    points, evaluations = document["curve"], document["evaluations"]
    if not points:
        return f'<p class="qs-small">{translate(language, "train.no_steps")}</p>'
    step = translate(language, "train.step")
    training, mean = (translate(language, f"train.{name}") for name in ("training", "smoothed"))
    charts = []
    for name, show in (("loss", _number), ("reward", _number), ("accuracy", _percent), ("learning_rate", _number)):
        curves = [
            (training, _series(points, name), "" if name == "learning_rate" else mean),
            (translate(language, "train.evaluation"), _series(evaluations, name), ""),
        ]
        kind: Literal["number", "share"] = "share" if name == "accuracy" else "number"
        charts.append(curve_figure(translate(language, f"train.{name}"), step, curves, show, kind))
    title = translate(language, "train.tokens_per_s")
    charts.append(curve_figure(title, step, [(training, _rates(points), mean)], _number))
    return f'<div class="qs-grid">{"".join(charts)}</div>'


def curve_figure(
    title: str,
    x_name: str,
    curves: Sequence[tuple[str, Mapping[float, float], str]],
    text: Callable[[float], str],
    kind: Literal["number", "share"] = "number",
) -> str:
    """Of each curve its name, its values by step, and what its running mean is called ("": it has none).

    A curve with a mean is thin, behind it, and has no name; "" where there is no value.
    """
    at = sorted({x for _, values, _ in curves for x in values})
    lines: list[Line] = []
    for colour, (name, values, mean) in zip(_CURVE_COLOURS, curves, strict=False):
        smooth = bool(mean) and len(values) >= FEWEST_TO_SMOOTH
        if values:
            lines.append(Line("" if smooth else name, colour, tuple(values.get(x) for x in at), is_faint=smooth))
        if smooth:
            lines.append(Line(mean, colour, smoothed([values.get(x) for x in at])))
    chart = Lines(tuple(at), tuple(lines), kind, counts=x_name, begins_at_zero=False, text=text)
    return figure(title, chart) if lines else ""


def held_view(document: Mapping[str, Any], language: str) -> str:
    """The device at its fullest as it was planned above what was measured, and a row a part."""
    planned, measured = document["planned"], document["measured"]
    terms = _by_part(planned["peak_terms"])
    total = planned["total_bytes"]
    is_small = sum(terms.values()) - terms.get("used_by_others", 0) < _LEAST_SHARE * total
    if is_small:
        terms.pop("used_by_others", None)
    drawn = [_bar(f"{planned['name']} · {translate(language, 'memory.planned')}", terms, total, language)]
    if peak := _peak(measured):
        drawn.append(_bar(translate(language, "memory.measured"), _measured_parts(measured, peak), total, language))
    bars = [replace(bar, total=None) for bar in drawn] if is_small else drawn
    phase = translate(language, "train.phase", phase=shown(language, planned["phase"]))
    source = shown(language, document["memory_source"])
    footnote = f'<p class="qs-small">{html.escape(" · ".join(one for one in (phase, source) if one))}</p>'
    title = f"<h3>{translate(language, 'train.memory')}</h3>"
    return f"{title}{draw(StackedBars(tuple(bars)))}{_rows(document, language)}{footnote}"


def rollouts_view(document: Mapping[str, Any], language: str) -> str:
    """What the policy wrote at the newest of the steps that were kept, with every reward; "" without rollouts."""
    steps = list(document.get("rollouts") or ())[-_OF_STEPS:]
    if not steps:
        return ""
    names = tuple(steps[0]["samples"][0]["rewards"])
    each = names if len(names) > 1 else ()
    head = [*(heading(language, f"train.{key}") for key in ("answer", "reward")), *each]
    head.append(heading(language, "train.advantage"))
    groups = "".join(_rollouts_of(step, each, head, language) for step in reversed(steps))
    names_of_columns = "".join(
        f'<th scope="col" {_NUMBER if column else ""}>{html.escape(name)}</th>' for column, name in enumerate(head)
    )
    return (
        f'<h3>{translate(language, "train.rollouts")}</h3><div class="qs-table qs-rollouts" tabindex="0" role="region" '
        f'aria-label="{translate(language, "train.rollouts")}"><table role="table"><thead role="rowgroup">'
        f'<tr role="row">{names_of_columns}</tr></thead>{groups}</table></div>'
    )


def _rollouts_of(step: Mapping[str, Any], each: Sequence[str], head: Sequence[str], language: str) -> str:
    """The answers to one prompt, below it. Roles are written out: as blocks on a phone, cells would lose theirs."""
    samples = step["samples"]
    title = f"{heading(language, 'train.step')} {step['step']:,}: {_shortened(samples[0]['prompt'])}"
    rows = []
    for one in samples:
        numbers = [_number(one["reward"]), *(_optional(one["rewards"].get(name)) for name in each)]
        cells = [_shortened(one["completion"]), *numbers, _optional(one.get("advantage"))]
        drawn = "".join(
            f'<td role="cell" data-head="{html.escape(name)}" {_NUMBER if column else ""}>{html.escape(cell)}</td>'
            for column, (name, cell) in enumerate(zip(head, cells, strict=True))
        )
        rows.append(f'<tr role="row">{drawn}</tr>')
    group = f'<tr role="row"><th role="rowheader" scope="rowgroup" colspan="{len(head)}">{html.escape(title)}</th></tr>'
    return f'<tbody role="rowgroup">{group}{"".join(rows)}</tbody>'


def configuration_view(run: Mapping[str, Any], document: Mapping[str, Any], language: str) -> str:
    """The command that was typed, and the two files by which it runs without qserve, each to copy."""
    parts = [f"<h3>{translate(language, 'train.again')}</h3>", command_view(shlex.join(run["command"]), language)]
    parts += [
        f'<details class="qs-file"><summary>{name}</summary><div class="qs-code">'
        f'<button type="button" class="qs-copy-code">{translate(language, "chat.copy")}</button>'
        f"<pre><code>{html.escape(document[key])}</code></pre></div></details>"
        for name, key in (("train.yaml", "configuration"), ("accelerate.yaml", "accelerate"))
        if document.get(key)
    ]
    return "".join(parts)


def first_run_view(state_dir: str | None, language: str) -> str:
    """How to start one whose curves come up here."""
    if state_dir is None:
        return f'<p class="qs-small">{translate(language, "train.not_kept")}</p>'
    command = f"{EXAMPLE} --state-dir {shlex.quote(state_dir)}"
    return f"<p>{translate(language, 'train.none')}</p>{command_view(command, language)}"


def state_text(state: str, language: str) -> str:
    """The word for what a run is doing or how it ended."""
    return translate(language, _STATE_NAMES[state]) if state in _STATE_NAMES else state


def _series(points: Sequence[Mapping[str, Any]], name: str) -> dict[float, float]:
    """The last value of each step: a run ends with an evaluation of what it saves."""
    return {float(one["step"]): float(one[name]) for one in points if one.get(name) is not None}


def _rates(points: Sequence[Mapping[str, Any]]) -> dict[float, float]:
    """Tokens a second between one kept step and the next; the first step, which compiles and allocates, has none."""
    known = [one for one in points if one.get("num_tokens") and one.get("step_s")]
    pairs = [(before, one) for before, one in itertools.pairwise(known) if one["step"] > before["step"]]
    tokens = [one["num_tokens"] - before["num_tokens"] for before, one in pairs]
    seconds = [one["step_s"] * (one["step"] - before["step"]) for before, one in pairs]
    return {float(one["step"]): num / s for (_, one), num, s in zip(pairs, tokens, seconds, strict=True)}


def _by_part(terms: Mapping[str, int]) -> dict[str, int]:
    parts: dict[str, int] = {}
    for name, num_bytes in terms.items():
        part = _PARTS.get(name.split()[0], "runtime")
        parts[part] = parts.get(part, 0) + num_bytes
    return parts


def _peak(measured: Mapping[str, Any]) -> int:
    return int(max(measured.get("backward_bytes") or 0, measured.get("step_bytes") or 0))


def _weights(measured: Mapping[str, Any]) -> int | None:
    """With those of the reference model, where there is one; None before they were measured."""
    held = measured.get("weights_bytes")
    return None if held is None else int(held + measured.get("reference_bytes", 0))


def _measured_parts(measured: Mapping[str, Any], peak: int) -> dict[str, int]:
    """The states by the sizes of their tensors; what of the peak is left is activations and temporaries.

    On a CPU gradients are not all there when activations are at their most: they count as far as there is room.
    """
    parts = {"weights": _weights(measured) or 0, "optimizer": measured.get("optimizer_bytes") or 0}
    parts["runtime"] = measured.get("baseline_bytes") or 0
    left = max(0, peak - sum(parts.values()))
    parts["gradients"] = min(measured.get("gradients_bytes") or 0, left)
    parts["activations"] = left - parts["gradients"]
    return parts


def _bar(label: str, parts: Mapping[str, int], total: int, language: str) -> Bar:
    drawn = tuple(
        Segment(_part_name(part, language), float(parts[part]), _size(parts[part]), TERM_COLOURS[part])
        for part in _ORDER
        if part in parts
    )
    used = format_bytes(sum(size for part, size in parts.items() if part != "used_by_others"))
    return Bar(label, drawn, translate(language, "memory.of", used=used, total=format_bytes(total)), float(total))


def _part_name(part: str, language: str) -> str:
    own = {"kv_cache": "engine", "gradients": "gradients", "optimizer": "optimizer", "gathered": "gathered"}
    if part == "activations":
        return translate(language, "train.activations")
    return translate(language, f"train.{own[part]}") if part in own else translate(language, f"term.{part}")


def _rows(document: Mapping[str, Any], language: str) -> str:
    planned, measured = document["planned"], document["measured"]
    rows = [
        (
            translate(language, f"train.{name}") if name != "weights" else translate(language, "term.weights"),
            sum(size for term, size in planned["terms"].items() if term.startswith(f"{name} (")),
            _weights(measured) if name == "weights" else measured.get(key),
        )
        for name, key in _STATES.items()
    ]
    rows += [
        (
            translate(language, "train.peak", phase=shown(language, phase)),
            planned["phases"].get(phase) or 0,
            measured.get(f"{phase}_bytes"),
        )
        for phase in ("backward", "step")
    ]
    before = (before_model_bytes(document) or 0, measured.get("baseline_bytes"))
    rows.append((translate(language, "train.before"), *before))
    keys = ("term", "planned", "measured", "difference")
    return table([heading(language, f"memory.{key}") for key in keys], [_compared(*row) for row in rows], (1, 2, 3))


def _compared(name: str, planned: int, measured: float | None) -> tuple[str, str, str, str]:
    if measured is None:
        return (name, _size(planned), "—", "")
    return (name, _size(planned), _size(measured), difference(measured / planned - 1) if planned else "")


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} …"


def _number(value: float) -> str:
    if 0 < abs(value) < _LEAST_PLAIN:
        return f"{value:.2e}".replace("e-0", "e-")
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _optional(value: float | None) -> str:
    return "—" if value is None else _number(value)


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def _size(num_bytes: float) -> str:
    return format_bytes(int(num_bytes))
