"""`qserve eval-reward`: accuracy of a reward model on preference data."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qserve.cli.options.command import Command
from qserve.cli.options.given_flags import refuse_flags
from qserve.cli.options.url import ServerUrl
from qserve.cli.reward.keep import keep, state_option
from qserve.cli.reward.options import LOADING_FLAGS, REWARD_FLAGS, loading_options, reward_options
from qserve.cli.reward.served_source import served_rewards
from qserve.cli.reward.source import opened_rewards, with_progress
from qserve.cli.reward.texts import Answered, records_in, texts_of
from qserve.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qserve.reward.evaluation.accuracy import Accuracy, PreferenceReport
    from qserve.reward.evaluation.calibration import Calibration
    from qserve.reward.evaluation.length_bias import LengthBias
    from qserve.reward.evaluation.records import Record

__all__ = ["command"]

Value = TypeVar("Value")


@click.command("eval-reward", cls=Command)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--reward", default="demo", show_default=True, help="A folder, a single file, a hub id, or demo.")
@click.option("--url", type=ServerUrl(), help="Use a server that answers POST /v1/reward instead of loading a model.")
@click.option("--model", help="The name under which --url serves it [the only one].")
@click.option("--api-key", help="For --url [$QSERVE_API_KEY].")
@click.option("--against", type=ServerUrl(), help="A second server, whose rewards are compared with the first ones.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="File for the figures.")
@state_option
@reward_options
@loading_options
def command(
    file: Path,
    reward: str,
    url: str | None,
    model: str | None,
    api_key: str | None,
    against: str | None,
    json_file: Path | None,
    state_dir: Path | None,
    **values: Any,
) -> None:
    """Measure accuracy on preferences (chosen, rejected) by subset, with confidence intervals, ties and margins; and
    the calibration and length bias of the model.

    A file with one chosen answer among several is scored as best-of-n (RewardBench 2); one with three styles of each
    answer as easy, normal and hard (RM-Bench).

    \b
    qserve eval-reward preferences.jsonl --reward ./my-reward-model
    qserve eval-reward reward-bench-2.jsonl --url http://127.0.0.1:8000
    qserve eval-reward pairs.jsonl --reward ./new --against http://127.0.0.1:8000
    """
    if url is not None:
        flags = ("reward", *REWARD_FLAGS, *LOADING_FLAGS)
        refuse_flags(flags, "a server loaded its model already; leave it out, or leave --url out")
    else:
        refuse_flags(("model", "api_key"), "for a server; name one with --url, or leave it out")
    from qserve.reward.evaluation.accuracy import evaluate, shape_of
    from qserve.reward.evaluation.attributes import by_attribute
    from qserve.reward.evaluation.calibration import calibration
    from qserve.reward.evaluation.length_bias import length_bias

    records = records_in(file)
    shape_of(records)  # before a model is loaded in vain
    texts = texts_of(records)
    if against is not None:
        served_rewards(against, None, None)(texts[:1])
    if url is not None:
        answers = with_progress(served_rewards(url, model, api_key), texts, f"scoring {file.name}")
    else:
        with opened_rewards(reward, values) as (source, _):
            answers = with_progress(source, texts, f"scoring {file.name}")
    rewards = _by_record(
        records, [_reward(answer, line) for answer, line in zip(answers, _lines(records), strict=True)]
    )
    rewards = [record.alike(values) for record, values in zip(records, rewards, strict=True)]
    lengths = _by_record(records, [int(answer["num_tokens"]) for answer in answers])
    report = evaluate(records, rewards)
    sure = calibration(report.margins)
    bias = length_bias(rewards, lengths, [record.num_chosen or 0 for record in records])
    _show(report, str(url or reward), file)
    each = by_attribute(records, _by_record(records, [answer.get("attributes") or {} for answer in answers]))
    _show_attributes(each)
    _show_quality(sure, bias)
    document = {
        **asdict(report),
        "attributes": [asdict(one) for one in each],
        "calibration": asdict(sure),
        "length_bias": _without_nan(asdict(bias)),
    }
    if against is not None:
        others = with_progress(served_rewards(against, None, None), texts, f"scoring with {against}")
        second = _by_record(records, [_reward(one, line) for one, line in zip(others, _lines(records), strict=True)])
        document["against"] = _show_agreement(against, records, rewards, second)
    keep(state_dir, "reward preferences", {"file": file.name, "model": url or reward, **document}, url, api_key)
    if json_file is not None:
        json_file.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def _lines(records: Sequence[Record]) -> list[int]:
    return [record.line for record in records for _ in record.contents]


def _by_record(records: Sequence[Record], values: Sequence[Value]) -> list[list[Value]]:
    rest = iter(values)
    return [[next(rest) for _ in record.contents] for record in records]


def _without_nan(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN."""
    return {name: None if value != value else value for name, value in values.items()}


def _show_attributes(each: Sequence[Accuracy]) -> None:
    for one in each:
        click.echo(
            f"  {one.name}: right {100 * one.accuracy:.1f} % ({100 * one.low:.1f} – {100 * one.high:.1f}), "
            f"{one.num_tied} ties, mean margin {one.mean_margin:.3f}"
        )


def _show_quality(sure: Calibration, bias: LengthBias) -> None:
    click.echo(f"\ncalibration: expected error {sure.error:.3f}, log loss {sure.log_loss:.3f}")
    for one in sure.bins:
        click.echo(f"  sure {one.low:.2f} to {one.high:.2f}: right {100 * one.accuracy:5.1f} % of {one.count}")
    longer, shorter = (
        f"{100 * share:.1f} % of {count}" if share is not None else "none"
        for share, count in ((bias.accuracy_longer, bias.num_longer), (bias.accuracy_shorter, bias.num_shorter))
    )
    click.echo(
        f"length: rank correlation of reward and tokens {bias.correlation:.3f}; right where the chosen answer is "
        f"longer {longer}, shorter {shorter}"
    )


def _show_agreement(
    name: str, records: Sequence[Record], first: list[list[float]], second: list[list[float]]
) -> dict[str, Any]:
    """How often both models prefer the same answer, and the rank correlation of their rewards."""
    from qserve.reward.evaluation.accuracy import evaluate
    from qserve.reward.evaluation.agreement import rank_correlation

    theirs = evaluate(records, second)
    ours = evaluate(records, first)
    same = sum((a > 0) == (b > 0) for a, b in zip(ours.margins, theirs.margins, strict=True)) / len(ours.margins)
    flat = [[value for one in side for value in one] for side in (first, second)]
    correlation = rank_correlation(*flat)
    click.echo(
        f"against {name}: {100 * same:.1f} % of preferences decided alike, rank correlation {correlation:.3f}; "
        f"its accuracy {100 * theirs.overall.accuracy:.1f} %"
    )
    found = {"url": name, "decided_alike": same, "rank_correlation": correlation, "accuracy": theirs.overall.accuracy}
    return _without_nan(found)


def _reward(answer: Answered, line: int) -> float:
    if "error" in answer:
        raise UsageError(f"line {line} can't be scored: {answer['error']}")
    return float(answer["reward"])


def _show(report: PreferenceReport, name: str, file: Path) -> None:
    from rich.table import Table

    from qserve.cli.terminal import console_of
    from qserve.reward.evaluation.accuracy import histogram

    table = Table(title=f"{name} on {file.name} ({report.shape})", box=None)
    for heading in ("", "right", "asked", "ties", "accuracy", "95 % interval", "mean margin"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in (*report.subsets, *report.levels, report.overall):
        table.add_row(*_cells(row))
    console_of().print(table)
    chance = f"guessing would get {100 * report.chance:.1f} %"
    if len(report.subsets) > 1:
        click.echo(f"mean over subsets {100 * report.mean_of_subsets:.1f} %; {chance}")
    else:
        click.echo(chance)
    if report.overall.num_tied:
        click.echo(f"{report.overall.num_tied} ties (equal texts or equal rewards), which count as not right")
    click.echo("\nmargins (lowest chosen - highest rejected)")
    click.echo("\n".join(histogram(report.margins)))


def _cells(row: Accuracy) -> tuple[str, ...]:
    return (
        row.name,
        str(row.num_right),
        str(row.num_asked),
        str(row.num_tied),
        f"{100 * row.accuracy:.1f} %",
        f"{100 * row.low:.1f} – {100 * row.high:.1f} %",
        f"{row.mean_margin:.3f}",
    )
