"""`qserve reward check` of a trained model: its rewards compared with those of plain transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from qserve.cli.progress import ProgressLine
from qserve.cli.reward.options import request_of, settings_of
from qserve.cli.reward.source import all_answers, check_installed, local_rewards, opened_scorer
from qserve.cli.reward.texts import Answered, Rewards, TextToScore
from qserve.errors import UsageError
from qserve.planner import PlanRequest
from qserve.reward.find import find_reward, plan_reward
from qserve.service.machine import hardware_of

if TYPE_CHECKING:
    from qserve.reward.evaluation.agreement import Agreement
    from qserve.reward.evaluation.records import Record

__all__ = ["Checked", "CheckedRewards", "check_model", "check_quants", "show_model"]


@dataclass(frozen=True)
class CheckedRewards:
    """Differences of rewards from the reference, for each label, and how they were computed (`meta`)."""

    reward: Agreement
    labels: Mapping[str, Agreement]
    meta: Mapping[str, Any]
    num_left_out: int = 0
    """Texts that plain transformers gave no reward."""


Checked = dict[str, CheckedRewards]
"""By quantization, or `served`."""


@dataclass(frozen=True)
class _Truth:
    reward: float
    labels: Mapping[str, float]


def check_quants(model: str, values: Mapping[str, Any], quants: Sequence[str]) -> None:
    """Raises UsageError for a model or a quantization that there is not, DoesNotFit; before anything is loaded."""
    check_installed()
    settings = settings_of(dict(values))
    checkpoint = find_reward(model, settings)
    for name in quants:
        plan_reward(checkpoint, hardware_of(None), request_of({**values, "quant": name}))


def check_model(
    model: str,
    records: Sequence[Record],
    texts: Sequence[TextToScore],
    values: dict[str, Any],
    quants: Sequence[str],
    served: Rewards | None,
    rows: Checked,
    line: ProgressLine,
) -> None:
    """Compare `served` rewards, or those of each of `quants` loaded here, with a plain float32 forward of `model`.

    `texts` are those of `records`. `rows` gets each as it is finished.
    """
    from qserve.reward.evaluation.agreement import agreement

    true = _truth(model, values, texts, line)
    place = {index: position for position, index in enumerate(true)}
    compared = _compared(records)
    pairs = [(place[i], place[j]) for i, j in compared if i in place and j in place] if compared else None
    for number, name in enumerate(("served",) if served is not None else quants, 1):
        rewards, meta = (served, {}) if served is not None else _loaded(model, {**values, "quant": name}, line)
        what = f"scoring with {name}" + (f", {number} of {len(quants)}" if len(quants) > 1 and not served else "")
        answers = all_answers(rewards, [texts[index] for index in true], what, line)
        failed = next((answer["error"] for answer in answers if "error" in answer), None)
        if failed is not None:
            raise UsageError(f"{name}: {failed}")
        of_reward = agreement([answer["reward"] for answer in answers], [one.reward for one in true.values()], pairs)
        by_label = _by_label(answers, list(true.values()), pairs)
        rows[name] = CheckedRewards(of_reward, by_label, meta, len(texts) - len(true))


def _by_label(
    answers: Sequence[Answered], true: Sequence[_Truth], pairs: Sequence[tuple[int, int]] | None
) -> dict[str, Agreement]:
    """Differences by label; empty for a model of one label, and if the server does not return them."""
    from qserve.reward.evaluation.agreement import agreement

    attributes = [answer.get("attributes") or {} for answer in answers]
    return {
        label: agreement([one[label] for one in attributes], [one.labels[label] for one in true], pairs)
        for label in true[0].labels
        if all(label in one for one in attributes)
    }


def _loaded(model: str, values: dict[str, Any], line: ProgressLine) -> tuple[Rewards, dict[str, Any]]:
    scorer = opened_scorer(model, values, line)
    return local_rewards(scorer), scorer.meta


def _compared(records: Sequence[Record]) -> list[tuple[int, int]]:
    """Pairs of texts to compare: chosen and rejected, or all answers to one prompt."""
    pairs: list[tuple[int, int]] = []
    first = 0
    for record in records:
        count, chosen = len(record.contents), record.num_chosen
        pairs += [
            (first + i, first + j)
            for i in range(count)
            for j in range(i + 1, count)
            if chosen is None or i < chosen <= j
        ]
        first += count
    return pairs


def _truth(model: str, values: dict[str, Any], texts: Sequence[TextToScore], line: ProgressLine) -> dict[int, _Truth]:
    """Reference rewards, by the index of each text that can be scored."""
    settings = settings_of(dict(values))
    checkpoint = find_reward(model, settings)
    line.phase("importing torch")
    from qserve.reward.evaluation.reference import plain_scorer
    from qserve.reward.failures import TextRefused
    from qserve.reward.scoring.template import RewardTemplate

    line.phase(f"loading {model} in plain transformers")
    plan = plan_reward(
        checkpoint, hardware_of(None), PlanRequest(dtype="float32", quant="fp32", max_model_len=settings.max_length)
    )
    plain = plain_scorer(checkpoint, plan, settings)
    click.echo(f"compared with the forward of {plain.source}, in float32", err=True)
    template = RewardTemplate(plain.tokenizer, checkpoint, settings, plan.workload.max_model_len)
    line.phase("scoring with plain transformers")
    true: dict[int, _Truth] = {}
    for index, one in enumerate(texts):
        line.count(index, len(texts))
        try:
            read = plain.values(template.encode(one.content).token_ids)
        except TextRefused as error:
            click.echo(f"line {one.group}: a text is left out: {error}", err=True)
            continue
        labels = dict(zip(checkpoint.labels, read, strict=True)) if checkpoint.labels else {}
        true[index] = _Truth(checkpoint.reward(read), labels)
    if not true:
        raise UsageError("no text of the file can be scored; the lines above say why")
    return true


def show_model(rows: Checked) -> None:
    """Print the differences, one row per quantization; nothing for none."""
    from rich.table import Table

    from qserve.terminal.console import console_of

    if not rows:
        return
    first = next(iter(rows.values()))
    console = console_of()
    left_out = f"; {first.num_left_out:,} texts were left out" if first.num_left_out else ""
    console.print(f"[bold]{first.reward.num_texts:,} texts against plain transformers[/bold] in float32{left_out}")
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for heading in ("", "largest difference", "mean", "rank correlation", "reversed pairs"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, row in rows.items():
        table.add_row(f"{name} ({row.meta['dtype']})" if "dtype" in row.meta else name, *_cells(row.reward))
        for label, found in row.labels.items():
            table.add_row(f"  {label}", *_cells(found))
    console.print(table)
    console.print(f"Standard deviation of the true rewards: {first.reward.spread:.3g}")


def _cells(row: Agreement) -> tuple[str, ...]:
    return (
        f"{row.largest_difference:.3g}",
        f"{row.mean_difference:.3g}",
        f"{row.rank_correlation:.5f}",
        f"{row.num_flipped} of {row.num_pairs}",
    )
