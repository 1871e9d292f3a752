"""`qserve score`: rewards for a file of prompts and answers, without a server."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from qserve.cli.options.command import Command
from qserve.cli.reward.options import loading_options, reward_options
from qserve.cli.reward.source import opened_rewards, with_progress
from qserve.cli.reward.texts import Answered, records_in, texts_of

__all__ = ["command"]


@click.command("score", cls=Command)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--reward", default="demo", show_default=True, help="A folder, a single file, a hub id, or demo.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Where to write [standard output].")
@click.option("--normalize", is_flag=True, help="(reward - mean) / std, as the checkpoint records them.")
@reward_options
@loading_options
def command(file: Path, reward: str, output: Path | None, normalize: bool, **values: Any) -> None:
    """Score a file of JSON lines: each line is written back with its rewards.

    A line has `messages`, `text`, `prompt` with `response` or `responses`, or `chosen` with `rejected`. Exit status: 0,
    or 1 if a line could not be scored; its "error" says why.

    \b
    qserve score answers.jsonl --reward ./my-reward-model --output rewards.jsonl
    qserve score answers.jsonl --reward adapter/ --base ./Qwen3-8B --quant 4bit
    qserve score answers.jsonl --reward model.pt --base ./Qwen2.5-3B
    """
    from qserve.reward.evaluation.records import Record

    records = records_in(file, keep_broken=True)
    texts = texts_of(records)
    with opened_rewards(reward, values) as (rewards, meta):
        scale = _scale(meta, normalize)
        began_s = time.monotonic()
        results = with_progress(rewards, texts, f"scoring {file.name}")
    took_s, answers = time.monotonic() - began_s, iter(results)

    def line(record: Record) -> dict[str, Any]:
        own = [next(answers) for _ in record.contents]
        failed = record.error or next((answer["error"] for answer in own if "error" in answer), None)
        if failed is not None:
            return {**record.data, "error": failed}
        return {**record.data, **_scored(own, record.num_chosen, scale)}

    lines = [line(record) for record in records]
    _write(lines, output)
    failed = sum("error" in one for one in lines)
    scored = [answer for answer in results if "error" not in answer]
    num_tokens, num_truncated = (sum(answer[name] for answer in scored) for name in ("num_tokens", "truncated"))
    click.echo(
        f"{len(scored)} texts, {num_tokens} tokens in {took_s:.1f} s "
        f"({num_tokens / max(took_s, 1e-9):.0f} tokens/s, {num_truncated} truncated); {_how(meta)}",
        err=True,
    )
    if failed:
        click.echo(f"{failed} of {len(lines)} lines could not be scored; their 'error' says why", err=True)
        sys.exit(1)


def _scale(meta: dict[str, Any], normalize: bool) -> tuple[float, float]:
    if not normalize:
        return 0.0, 1.0
    if meta.get("mean") is None or not meta["std"]:
        raise click.UsageError("--normalize: the checkpoint records no mean and standard deviation of its rewards")
    return meta["mean"], meta["std"]


def _scored(answers: list[Answered], num_chosen: int | None, scale: tuple[float, float]) -> dict[str, Any]:
    rewards = [(answer["reward"] - scale[0]) / scale[1] for answer in answers]
    attributes = [answer["attributes"] for answer in answers if "attributes" in answer]
    if num_chosen is not None:
        chosen, rejected = rewards[:num_chosen], rewards[num_chosen:]
        pair = {"chosen_rewards": chosen, "rejected_rewards": rejected, "margin": min(chosen) - max(rejected)}
        sides = {"chosen_attributes": attributes[:num_chosen], "rejected_attributes": attributes[num_chosen:]}
        return {**pair, **(sides if attributes else {})}
    if len(rewards) > 1:
        ranking = sorted(range(len(rewards)), key=lambda index: -rewards[index])
        return {"rewards": rewards, "ranking": ranking, **({"attributes": attributes} if attributes else {})}
    own: dict[str, Any] = {name: answers[0][name] for name in ("steps", "attributes") if name in answers[0]}
    return {"reward": rewards[0], **own, "truncated": answers[0]["truncated"]}


def _write(lines: list[dict[str, Any]], output: Path | None) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text)


def _how(meta: dict[str, Any]) -> str:
    shown = ("format", "pooling", "dtype", "quant", "max_length", "template_hash")
    return ", ".join(f"{name} {meta[name]}" for name in shown if name in meta) or f"weights {meta['weights']}"
