"""`qserve reward check`: rewards against plain transformers, the cost of each quantization, each part of a recipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qserve.cli.options.command import CommandGroup
from qserve.cli.options.given_flags import refuse_flags
from qserve.cli.options.url import ServerUrl
from qserve.cli.reward.check_model import Checked, CheckedRewards, check_model, show_model
from qserve.cli.reward.check_parts import check_parts, of_part, show_parts
from qserve.cli.reward.keep import keep, state_option
from qserve.cli.reward.options import LOADING_FLAGS, loading_options, reward_options
from qserve.cli.reward.recipe_source import recipe_to_check
from qserve.cli.reward.served_source import served_rewards
from qserve.cli.reward.source import with_progress
from qserve.cli.reward.texts import Rewards, TextToScore, records_in, texts_of

if TYPE_CHECKING:
    from qserve.reward.evaluation.agreement import Agreement
    from qserve.reward.evaluation.parts import PartFound
    from qserve.reward.evaluation.records import Record
    from qserve.reward.recipe import Recipe

__all__ = ["command"]


@click.group("reward", cls=CommandGroup)
def command() -> None:
    """Check a reward model or recipe against plain transformers, and part by part.

    \b
    qserve reward check --reward ./my-reward-model
    """


@command.command("check", short_help="Compare rewards with plain transformers.")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--reward", default="demo", show_default=True, help="A folder, a single file, a hub id, demo, or a recipe (YAML)."
)
@click.option("--url", type=ServerUrl(), help="Check a server that serves this reward instead of loading it here.")
@click.option("--model", help="The name under which --url serves it [the only one].")
@click.option("--api-key", help="For --url [$QSERVE_API_KEY].")
@click.option("--quants", help="Several quantizations in turn, for example bf16,int8,4bit [--quant].")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="File for the figures.")
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
    """Compare a model's rewards with a plain transformers forward in float32, one text at a time. For a recipe, do
    so for its model, and show for each rule and judge how often it has no value and which preferences it gets right.

    FILE holds JSON lines as for `qserve score`; without it, a built-in set of preferences is scored, whose chosen
    answers are the references. Pairs are those of the file (chosen and rejected, answers to one prompt); if it has
    none, all texts are compared with each other. Exit status: 0, or 1 if a part of a recipe fails (each is named).

    \b
    qserve reward check preferences.jsonl --reward ./rm --quants bf16,int8,4bit
    qserve reward check --reward ./my-reward-model --url http://127.0.0.1:8000
    qserve reward check --reward rewards.yaml preferences.jsonl
    """
    if url is not None:
        refuse_flags(("quants", *LOADING_FLAGS), "a server loaded its model already; leave it out, or leave --url out")
    else:
        refuse_flags(("model", "api_key"), "for a server; name one with --url, or leave it out")
    recipe = recipe_to_check(reward, values, has_url=url is not None)
    if recipe is not None and recipe.model is None:
        refuse_flags(("quants",), f"for a model, and {reward} names none; leave it out")
    records = _records(file)
    texts = texts_of(records)
    source = None if url is None else served_rewards(url, model, api_key)
    if source is not None:
        source(texts[:1])  # before a model is loaded in vain
    parts = [] if recipe is None else _parts(recipe, records, texts, source)
    rows: Checked = {}
    if recipe is None or recipe.model is not None:
        own = reward if recipe is None or recipe.model is None else recipe.model.path
        of_model = of_part(source, recipe.model) if source and recipe and recipe.model else source
        rows, num_left_out = check_model(own, records, texts, values, (quants or values["quant"]).split(","), of_model)
        show_model(rows, num_left_out)
    if parts:
        show_parts(parts)
    figures = {name: _document(row, url) for name, row in rows.items()}
    found_parts = {} if recipe is None else {"parts": [asdict(part) for part in parts]}
    about = {"file": file.name if file else "the built-in set", "model": url or reward, "quantizations": figures}
    keep(state_dir, "reward check", {**about, **found_parts}, url, api_key)
    if json_file is not None:
        document = figures if recipe is None else {**found_parts, "quantizations": figures}
        json_file.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    _fail(parts)


def _parts(
    recipe: Recipe, records: Sequence[Record], texts: Sequence[TextToScore], source: Rewards | None
) -> list[PartFound]:
    """`source` is a server that combines them."""
    served = None if source is None else with_progress(source, texts, "asking the server")
    return check_parts(recipe, records, texts, served)


def _fail(parts: Sequence[PartFound]) -> None:
    faults = [f"{part.name}: {fault}" for part in parts for fault in part.faults]
    for fault in faults:
        click.echo(f"error: {fault}", err=True)
    if faults:
        sys.exit(1)


def _document(row: CheckedRewards, url: str | None) -> dict[str, Any]:
    labels = {label: _figures(found) for label, found in row.labels.items()}
    return {**_figures(row.reward), **({"labels": labels} if labels else {}), "meta": row.meta or {"url": url}}


def _figures(row: Agreement) -> dict[str, float | None]:
    """NaN (the correlation of equal scores) as null: JSON has no NaN."""
    return {name: value if value == value else None for name, value in vars(row).items()}


def _records(file: Path | None) -> list[Record]:
    return _built_in() if file is None else records_in(file)


def _built_in() -> list[Record]:
    """Held-out preferences of the demo's tasks: short texts that any model can score."""
    from qserve.demo.preferences import held_out_preferences
    from qserve.demo.tasks import TASKS
    from qserve.reward.evaluation.records import Record

    preferences = [one for task in TASKS for one in held_out_preferences(task, 8, seed=7)]
    return [
        Record(
            line, tuple(_turns(one.question, answer) for answer in (one.chosen, one.rejected[0])), 1, one.task,
            {"reference": one.chosen},
        )
        for line, one in enumerate(preferences, 1)
    ]  # fmt: skip


def _turns(question: str, answer: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
