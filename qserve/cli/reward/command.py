"""`qserve reward check`: are the scores right, and what does each quantization cost?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qserve.cli.options.given import refuse_given
from qserve.cli.options.planning import hardware_of
from qserve.cli.options.url import ServerUrl
from qserve.cli.reward.keep import keep, state_option
from qserve.cli.reward.options import LOADING_FLAGS, loading_options, reward_options, settings_of
from qserve.cli.reward.source import local_rewards, opened_scorer, served_rewards, with_progress
from qserve.cli.reward.texts import Rewards, TextToScore
from qserve.errors import UsageError
from qserve.planner import PlanRequest
from qserve.reward.recipe import is_recipe

if TYPE_CHECKING:
    from qserve.reward.evaluation.agreement import Agreement
    from qserve.reward.evaluation.records import Content

__all__ = ["command"]


@click.group("reward")
def command() -> None:
    """What a trained reward model scores, held against plain transformers.

    \b
    qserve reward check --reward ./my-reward-model
    """


@command.command("check")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--reward", default="demo", show_default=True, help="A folder, a single file, a hub id, or demo.")
@click.option("--url", type=ServerUrl(), help="Check a server that serves this model, in place of loading it here.")
@click.option("--model", help="The name under which --url serves it [the only one].")
@click.option("--api-key", help="For --url [$QSERVE_API_KEY].")
@click.option("--quants", help="Several quantizations in turn, for example bf16,int8,4bit [--quant].")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here.")
@state_option
@reward_options
@loading_options
def check(
    file: Path | None,
    reward: str,
    url: str | None,
    model: str | None,
    api_key: str | None,
    quants: str | None,
    json_file: Path | None,
    state_dir: Path | None,
    **values: Any,
) -> None:
    """Compare scores with a plain transformers forward in float32, one text at a time.

    FILE holds JSON lines as for `qserve score`; without one a built-in set of preferences is scored. Pairs are the
    file's own (chosen and rejected, answers to one prompt); without any, all texts against each other.

    \b
    qserve reward check --reward ./my-reward-model preferences.jsonl --quants bf16,int8,4bit
    qserve reward check --reward ./my-reward-model --url http://127.0.0.1:8000
    """
    if url is not None:
        refuse_given(("quants", *LOADING_FLAGS), "a server loaded its model already; leave it out, or leave --url out")
    else:
        refuse_given(("model", "api_key"), "for a server; name one with --url, or leave it out")
    from qserve.reward.evaluation.agreement import agreement

    if is_recipe(reward):
        raise UsageError(
            f"{reward} combines parts; held against transformers is a model: name it, --reward MODEL of its model part"
        )
    contents, compared = _texts(file)
    if url is not None:
        served_rewards(url, model, api_key)([TextToScore(contents[0], 0)])  # before a model is loaded for nothing
    true, kept = _true_rewards(reward, values, contents)
    pairs = [(kept[i], kept[j]) for i, j in compared if i in kept and j in kept] if compared else None
    asked = [contents[index] for index in kept]
    rows: dict[str, tuple[Agreement, dict[str, Any]]] = {}
    for name in _names(url, quants, values):
        rewards, meta = _source(reward, url, model, api_key, {**values, "quant": name})
        texts = [TextToScore(content, number) for number, content in enumerate(asked)]
        answers = with_progress(rewards, texts, f"scoring with {name}")
        failed = next((answer["error"] for answer in answers if "error" in answer), None)
        if failed is not None:
            raise UsageError(f"{name}: {failed}")
        rows[name] = (agreement([answer["reward"] for answer in answers], true, pairs), meta)
    _show(rows, len(contents) - len(kept))
    figures = {name: {**_figures(row), "meta": meta} for name, (row, meta) in rows.items()}
    about = {"file": file.name if file else "the built-in set", "model": url or reward, "quantizations": figures}
    keep(state_dir, "reward check", about, url, api_key)
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")


def _figures(row: Agreement) -> dict[str, float | None]:
    """JSON has no NaN: the correlation of texts that all score the same."""
    return {name: value if value == value else None for name, value in vars(row).items()}


def _texts(file: Path | None) -> tuple[list[Content], list[tuple[int, int]]]:
    """Texts, and which of them somebody compares."""
    from qserve.reward.evaluation.records import read_records

    if file is None:
        return _built_in()
    contents: list[Content] = []
    pairs: list[tuple[int, int]] = []
    for record in read_records(file):
        first = len(contents)
        contents += record.contents
        count, chosen = len(record.contents), record.num_chosen
        pairs += [
            (first + i, first + j)
            for i in range(count)
            for j in range(i + 1, count)
            if chosen is None or i < chosen <= j
        ]
    return contents, pairs


def _built_in() -> tuple[list[Content], list[tuple[int, int]]]:
    """Held-out preferences of the demo's tasks: short, but every model can read them."""
    from qserve.demo.preferences import held_out_preferences
    from qserve.demo.tasks import TASKS

    contents: list[Content] = []
    for task in TASKS:
        for preference in held_out_preferences(task, 8, seed=7):
            for answer in (preference.chosen, preference.rejected[0]):
                turns = [{"role": "user", "content": preference.question}, {"role": "assistant", "content": answer}]
                contents.append(turns)
    return contents, [(index, index + 1) for index in range(0, len(contents), 2)]


def _true_rewards(
    reward: str, values: dict[str, Any], contents: Sequence[Content]
) -> tuple[list[float], dict[int, int]]:
    """True rewards, and from the index of each text that can be scored at all to its place among them."""
    from qserve.reward.evaluation.reference import plain_scorer
    from qserve.reward.find import find_reward
    from qserve.reward.open import plan_reward
    from qserve.reward.scoring.pooling import PoolingRule
    from qserve.reward.scoring.scorer import ScoreItem
    from qserve.reward.scoring.template import RewardTemplate
    from qserve.wire.errors import ApiError

    settings = settings_of(dict(values))
    checkpoint = find_reward(reward, settings)
    request = PlanRequest(dtype="float32", quant="fp32", max_model_len=settings.max_length)
    plan = plan_reward(checkpoint, hardware_of(None), request)
    plain = plain_scorer(checkpoint, plan)
    template = RewardTemplate(plain.tokenizer, checkpoint, settings, plan.workload.max_model_len)
    rule = PoolingRule.of(checkpoint, settings, plain.tokenizer.eos_token_id)
    true: list[float] = []
    kept: dict[int, int] = {}
    for index, content in enumerate(contents):
        try:
            ids = template.encode(content).token_ids
            pooled = rule.pooled(ScoreItem(ids))
        except ApiError as error:
            click.echo(f"text {index} is left out: {error.message}", err=True)
            continue
        kept[index] = len(true)
        true.append(plain.score(ids, -1 if pooled.mean else pooled.positions[-1]))
    if not true:
        raise UsageError("no text of the file can be scored; the lines above say why")
    return true, kept


def _names(url: str | None, quants: str | None, values: dict[str, Any]) -> list[str]:
    if url is not None:
        return ["served"]
    return quants.split(",") if quants else [values["quant"]]


def _source(
    reward: str, url: str | None, model: str | None, api_key: str | None, values: dict[str, Any]
) -> tuple[Rewards, dict[str, Any]]:
    if url is not None:
        return served_rewards(url, model, api_key), {"url": url}
    scorer = opened_scorer(reward, values)
    return local_rewards(scorer), scorer.meta


def _show(rows: dict[str, tuple[Agreement, dict[str, Any]]], num_left_out: int) -> None:
    from rich.table import Table

    from qserve.cli.terminal import console_of

    first = next(iter(rows.values()))[0]
    table = Table(title=f"{first.num_texts} texts against plain transformers in float32, one at a time", box=None)
    for heading in ("", "largest difference", "mean", "rank correlation", "pairs turned around"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, (row, meta) in rows.items():
        what = f"{name} ({meta['dtype']})" if "dtype" in meta else name
        table.add_row(
            what,
            f"{row.largest_difference:.2e}",
            f"{row.mean_difference:.2e}",
            f"{row.rank_correlation:.5f}",
            f"{row.num_flipped} of {row.num_pairs}",
        )
    console_of().print(table)
    left_out = f"; {num_left_out} texts were left out" if num_left_out else ""
    click.echo(f"standard deviation of the true rewards {first.spread:.3g}{left_out}")
