"""Scores as HTML: answers to one prompt, steps of an answer, a file of preferences."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from qserve.charts.html import draw, figure
from qserve.charts.spec import Histogram, SignedBars
from qserve.ui.preference_files import ScoredFile
from qserve.ui.strings import translate
from qserve.ui.views.tables import probability_of, table, tiles

__all__ = ["answers_view", "file_view"]

_LOADED_AS = ("format", "pooling", "dtype", "quant")


def answers_view(
    names: Sequence[str], texts: Sequence[Any], rows: Sequence[dict[str, Any]], meta: dict[str, Any], language: str
) -> str:
    """Answers to one prompt, the best first: margin, bars, coloured steps of a process reward model, a table.

    Args:
        names: of the answers.
        texts: of each a text, or the steps of it.
        rows: of `/v1/reward`, in the order of the answers.
        meta: what the worker says of itself.
        language: see `strings.translate`.

    """
    rewards = [float(row["reward"]) for row in rows]
    order = sorted(range(len(rewards)), key=lambda index: -rewards[index])
    parts = []
    if len(rewards) > 1:
        margin = rewards[order[0]] - rewards[order[1]]
        figures = [(translate(language, "score.margin"), f"{margin:.3f}")]
        # A step's score is a share already, and a sum of rules and judges no logit.
        if not any(row.get("steps") for row in rows) and "rules_failed" not in meta:
            figures.append((translate(language, "score.probability"), _probability(margin)))
        parts.append(tiles(figures))
    # Steps are shares of one: their bars stand on that, whatever the best answer has.
    scale = (0.0, 1.0) if any(row.get("steps") for row in rows) else None
    parts.append(draw(score_bars([(names[index], rewards[index]) for index in order], 0, scale)))
    parts += [_coloured(names[i], texts[i], rows[i]["steps"]) for i in order if rows[i].get("steps")]
    attributes = list(rows[order[0]].get("attributes") or {})
    parts.append(_attribute_bars(attributes, [(names[i], rows[i]) for i in order], meta, language))
    head = [translate(language, f"score.{name}") for name in ("answer", "reward", "num_tokens")]
    head[2:2] = attributes
    cells = [
        (
            names[i],
            f"{rewards[i]:.6f}",
            *(f"{rows[i]['attributes'][name]:.4f}" for name in attributes),
            rows[i].get("num_tokens", ""),
        )
        for i in order
    ]
    parts.append(table(head, cells, numbers=tuple(range(1, len(head)))))
    loaded_as = " · ".join(f"{translate(language, f'score.{key}')} {meta[key]}" for key in _LOADED_AS if key in meta)
    return f'{"".join(parts)}<p class="qs-small">{html.escape(loaded_as)}</p>'


def _probability(margin: float) -> str:
    """Never 100 %: no margin makes sure."""
    share = 100 * probability_of(margin)
    return "> 99.9 %" if share > 99.9 else f"{share:.1f} %"


def _attribute_bars(
    attributes: Sequence[str], rows: Sequence[tuple[str, dict[str, Any]]], meta: dict[str, Any], language: str
) -> str:
    """For each attribute the answers' values on a scale of its own: a rule says 0 or 1, a head what it was trained on.

    `rows` are names of answers with their rows, the best first; `meta` holds what each attribute counts.
    """
    weights = meta.get("weights") or {}
    sections = []
    for attribute in attributes:
        values = [float(row["attributes"][attribute]) for _, row in rows]
        named = [(name, value) for (name, _), value in zip(rows, values, strict=True)]
        bars = draw(score_bars(named, values.index(max(values))))
        weight = f" × {weights[attribute]:g}" if attribute in weights else ""
        sections.append(f"<section><h4>{html.escape(attribute)}{weight}</h4>{bars}</section>")
    if not sections:
        return ""
    title = html.escape(translate(language, "score.attributes"))
    return f'<section class="qs-attributes"><h3>{title}</h3>{"".join(sections)}</section>'


def _coloured(name: str, steps: Sequence[str], scores: Sequence[float]) -> str:
    """The steps of an answer on a ground between red (0) and green (1), each with its score."""
    rows = "".join(
        f'<li style="background: hsl({120 * max(0.0, min(1.0, score)):.0f} 70% 50% / 0.22)">'
        f"<span>{html.escape(step)}</span><b>{score:.3f}</b></li>"
        for step, score in zip(steps, scores, strict=False)
    )
    return f'<section class="qs-steps"><h3>{html.escape(name)}</h3><ol>{rows}</ol></section>'


def file_view(scored: ScoredFile, language: str) -> str:
    """A scored file: accuracy and margins of its pairs, or the rewards of its texts."""
    margins, rewards = scored.margins, [one for row in scored.rewards for one in row]
    figures = [(translate(language, "score.texts"), f"{len(rewards):,}")]
    if margins and scored.accuracy is not None:
        figures = [
            (translate(language, "score.accuracy"), f"{100 * scored.accuracy:.1f} %"),
            (translate(language, "score.pairs"), f"{len(margins):,}"),
            (translate(language, "score.mean_margin"), f"{sum(margins) / len(margins):.3f}"),
            (translate(language, "score.ties"), f"{sum(one == 0 for one in margins):,}"),
        ]
    edges, counts, split = scored.columns()
    title = translate(language, "score.histogram" if margins else "score.rewards")
    chart = Histogram(tuple(f"{edge:.3g}" for edge in edges), tuple(counts), "good", num_bad=split or 0)
    return tiles(figures) + figure(title, chart)


def score_bars(values: Sequence[tuple[str, float]], best: int, scale: tuple[float, float] | None = None) -> SignedBars:
    """A bar a value, on `scale`, else on that of the values with zero."""
    numbers = [value for _, value in values]
    return SignedBars(tuple(values), best, *(scale or (min(0.0, *numbers), max(0.0, *numbers))))
