"""`qserve eval-reward`: accuracy of a reward model on preference data."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qserve.cli.given import refuse_given
from qserve.cli.keep_reward import keep, state_option
from qserve.cli.reward_options import LOADING_FLAGS, REWARD_FLAGS, loading_options, reward_options
from qserve.cli.reward_source import Answered, local_rewards, opened_scorer, served_rewards, with_progress
from qserve.errors import UsageError

if TYPE_CHECKING:
    from qserve.reward.evaluation.accuracy import Accuracy, PreferenceReport

__all__ = ["command"]


@click.command("eval-reward")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--reward", default="demo", show_default=True, help="A folder, a single file, a hub id, or demo.")
@click.option("--url", help="Ask a server that answers POST /v1/reward, in place of loading the model here.")
@click.option("--model", help="The name under which --url serves it [the only one].")
@click.option("--api-key", help="For --url [$QSERVE_API_KEY].")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here.")
@state_option
@reward_options
@loading_options
def command(
    file: Path,
    reward: str,
    url: str | None,
    model: str | None,
    api_key: str | None,
    json_file: Path | None,
    state_dir: Path | None,
    **values: Any,
) -> None:
    """Accuracy on preferences (chosen, rejected): by subset, with confidence intervals, ties and margins.

    A file with one chosen answer among several is scored as best-of-n (RewardBench 2), one with three styles of each
    as easy, normal and hard (RM-Bench).

    \b
    qserve eval-reward preferences.jsonl --reward ./my-reward-model
    qserve eval-reward reward-bench-2.jsonl --url http://127.0.0.1:8000 --json result.json
    """
    if url is not None:
        flags = ("reward", *REWARD_FLAGS, *LOADING_FLAGS)
        refuse_given(flags, "a server loaded its model already; leave it out, or leave --url out")
    else:
        refuse_given(("model", "api_key"), "for a server; name one with --url, or leave it out")
    from qserve.reward.evaluation.accuracy import evaluate, shape_of
    from qserve.reward.evaluation.records import read_records

    records = read_records(file)
    shape_of(records)  # before a model is loaded for nothing
    contents = [content for record in records for content in record.contents]
    source = served_rewards(url, model, api_key) if url else local_rewards(opened_scorer(reward, values))
    answers = iter(with_progress(source, contents, f"scoring {file.name}"))
    rewards = [[_reward(next(answers), record.line) for _ in record.contents] for record in records]
    report = evaluate(records, rewards)
    _show(report, str(url or reward), file)
    document = asdict(report)
    keep(state_dir, "reward preferences", {"file": file.name, "model": url or reward, **document}, url, api_key)
    if json_file is not None:
        json_file.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


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
