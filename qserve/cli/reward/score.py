"""`qserve score`: rewards for a file of prompts and answers, without a server."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from qserve.cli.reward.options import loading_options, reward_options
from qserve.cli.reward.source import Answered, local_rewards, opened_scorer, with_progress

__all__ = ["command"]


@click.command("score")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--reward", default="demo", show_default=True, help="A folder, a single file, a hub id, or demo.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Where to write [standard output].")
@click.option("--normalize", is_flag=True, help="(reward - mean) / std, as the checkpoint records them.")
@reward_options
@loading_options
def command(file: Path, reward: str, output: Path | None, normalize: bool, **values: Any) -> None:
    """Score a file of JSON lines in one go: each line comes back with its rewards.

    A line has messages, text, prompt with response or responses, or chosen with rejected. Exit status: 0, or 1 when a
    line could not be scored; its "error" says why.

    \b
    qserve score answers.jsonl --reward ./my-reward-model --output rewards.jsonl
    qserve score answers.jsonl --reward adapter/ --base ./Qwen3-8B --quant 4bit
    qserve score answers.jsonl --reward model.pt --base ./Qwen2.5-3B --truncate left
    """
    from qserve.reward.evaluation.records import Record, read_records

    records = read_records(file)
    scorer = opened_scorer(reward, values)
    scale = _scale(scorer.meta, normalize)
    contents = [content for record in records for content in record.contents]
    began_s = time.monotonic()
    answers = iter(with_progress(local_rewards(scorer), contents, f"scoring {file.name}"))
    took_s = time.monotonic() - began_s

    def line(record: Record) -> dict[str, Any]:
        own = [next(answers) for _ in record.contents]
        failed = next((answer["error"] for answer in own if "error" in answer), None)
        if failed is not None:
            return {**record.data, "error": failed}
        return {**record.data, **_told(own, record.num_chosen, scale)}

    lines = [line(record) for record in records]
    _write(lines, output)
    failed = sum("error" in one for one in lines)
    stats = scorer.stats
    click.echo(
        f"{len(contents) - failed} texts, {stats.num_tokens} tokens in {took_s:.1f} s "
        f"({stats.num_tokens / max(took_s, 1e-9):.0f} tokens/s, {stats.num_truncated} truncated); {_how(scorer.meta)}",
        err=True,
    )
    if failed:
        click.echo(f"{failed} of {len(lines)} lines could not be scored; their 'error' says why", err=True)
        sys.exit(1)


def _scale(meta: dict[str, Any], normalize: bool) -> tuple[float, float]:
    if not normalize:
        return 0.0, 1.0
    if meta["mean"] is None or not meta["std"]:
        raise click.UsageError("--normalize: the checkpoint records no mean and standard deviation of its rewards")
    return meta["mean"], meta["std"]


def _told(answers: list[Answered], num_chosen: int | None, scale: tuple[float, float]) -> dict[str, Any]:
    rewards = [(answer["reward"] - scale[0]) / scale[1] for answer in answers]
    if num_chosen is not None:
        chosen, rejected = rewards[:num_chosen], rewards[num_chosen:]
        return {"chosen_rewards": chosen, "rejected_rewards": rejected, "margin": min(chosen) - max(rejected)}
    if len(rewards) > 1:
        return {"rewards": rewards, "ranking": sorted(range(len(rewards)), key=lambda index: -rewards[index])}
    steps = {"steps": answers[0]["steps"]} if "steps" in answers[0] else {}
    return {"reward": rewards[0], **steps, "truncated": answers[0]["truncated"]}


def _write(lines: list[dict[str, Any]], output: Path | None) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text)


def _how(meta: dict[str, Any]) -> str:
    shown = ("format", "pooling", "dtype", "quant", "max_length", "template_hash")
    return ", ".join(f"{name} {meta[name]}" for name in shown)
