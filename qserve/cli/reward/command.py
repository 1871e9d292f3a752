"""`qserve reward check`: rewards against plain transformers, the cost of each quantization, each part of a recipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from qserve.cli.command_line import this_command
from qserve.cli.interrupted import INTERRUPTED, sigterm_as_ctrl_c
from qserve.cli.options.command import CommandGroup, reward_revision_option
from qserve.cli.options.given_flags import refuse_flags
from qserve.cli.options.json_output import add_json_flag, print_json
from qserve.cli.progress import ProgressLine, progress_line
from qserve.cli.reward.check_model import Checked, CheckedRewards, check_model, check_quants, show_model
from qserve.cli.reward.check_parts import check_parts, of_part, show_parts
from qserve.cli.reward.keep import keep, state_option
from qserve.cli.reward.options import LOADING_FLAGS, loading_options, reward_options
from qserve.cli.reward.recipe_source import recipe_to_check
from qserve.cli.reward.scored_rows import Failures
from qserve.cli.reward.served_source import SERVER_FLAGS, ServedRewards, server_options
from qserve.cli.reward.source import all_answers
from qserve.cli.reward.texts import records_in, texts_of
from qserve.errors import UnusableResult

if TYPE_CHECKING:
    from qserve.reward.evaluation.agreement import Agreement
    from qserve.reward.evaluation.parts import PartFound
    from qserve.reward.evaluation.records import Record
    from qserve.reward.recipe import Recipe

__all__ = ["command"]


@dataclass
class _Found:
    """Figures of a model's quantizations and of a recipe's parts."""

    rows: Checked = field(default_factory=Checked)
    parts: list[PartFound] = field(default_factory=list)

    def show(self) -> None:
        """Print them; nothing for none."""
        show_model(self.rows)
        show_parts(self.parts)


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
@reward_revision_option
@server_options
@click.option("--quants", help="Several quantizations in turn, for example bf16,int8,4bit [--quant].")
@click.option("--strict", is_flag=True, help="Stop at the first line that can't be read.")
@add_json_flag
@state_option
@reward_options
@loading_options
def check(
    file: Path | None,
    reward: str,
    url: str | None,
    model: str | None,
    api_key: str | None,
    concurrency: int,
    quants: str | None,
    strict: bool,
    as_json: bool,
    state_dir: Path | None,
    **values: Any,
) -> None:
    """Compare a model's rewards with a plain transformers forward in float32, one text at a time. For a recipe, do
    so for its model, and show for each rule and judge how often it has no value and which preferences it gets right.

    FILE holds JSON lines as for `qserve score`; without it, a built-in set of preferences is scored, whose chosen
    answers are the references. Pairs are those of the file (chosen and rejected, answers to one prompt); if it has
    none, all texts are compared with each other.

    \b
    qserve reward check preferences.jsonl --reward ./rm --quants bf16,int8,4bit
    qserve reward check --reward ./my-reward-model --url http://127.0.0.1:8000
    qserve reward check --reward rewards.yaml preferences.jsonl

    Exit status: 0, 1 a part of a recipe fails (each is named), 2 bad input, 5 the server stopped answering, 6 some
    lines were left out, 130 after Ctrl-C.
    """
    if url is not None:
        refuse_flags(("quants", *LOADING_FLAGS), "a server loaded its model already; leave it out, or leave --url out")
    else:
        refuse_flags(SERVER_FLAGS, "for a server; name one with --url, or leave it out")
    recipe = recipe_to_check(reward, values, has_url=url is not None)
    if recipe is not None and recipe.model is None:
        refuse_flags(("quants",), f"for a model, and {reward} names none; leave it out")
    failures, found = Failures(), _Found()
    server = None if url is None else ServedRewards(url, model, api_key, concurrency)
    names = [values["quant"]] if quants is None else [name.strip() for name in quants.split(",")]
    try:
        with progress_line() as line, sigterm_as_ctrl_c():
            line.phase(f"reading {file.name if file else 'the built-in set'}", is_short=True)
            records = _records(file, failures, is_strict=strict)
            _check(reward if recipe is None else recipe, server, records, names, values, found, line)
    except KeyboardInterrupt:
        _interrupted(found)
    document = {
        "file": file.name if file else "the built-in set",
        "model": url or reward,
        "quantizations": {name: _document(row, url) for name, row in found.rows.items()},
        **({} if recipe is None else {"parts": [asdict(part) for part in found.parts]}),
        "num_left_out": len(failures.lines),
        "errors": failures.to_json(),
    }
    keep(state_dir, "reward check", document, url, api_key)
    print_json(document) if as_json else found.show()
    if _print_faults(found.parts):
        sys.exit(1)
    if failures.lines:
        raise UnusableResult(
            f"Lines that could not be read: {len(failures.lines):,}; the figures are those of the others"
        )


def _check(
    reward: str | Recipe,
    server: ServedRewards | None,
    records: Sequence[Record],
    quants: Sequence[str],
    values: dict[str, Any],
    found: _Found,
    line: ProgressLine,
) -> None:
    """Check a model, or each part of a recipe, by `server` or here. `found` gets each figure as it is finished."""
    recipe = None if isinstance(reward, str) else reward
    model = reward if isinstance(reward, str) else None if reward.model is None else reward.model.path
    texts = texts_of(records)
    if server is not None:
        server.check(texts)  # before a model is loaded in vain
    if model is not None:
        check_quants(model, values, quants if server is None else ())
    if recipe is not None:
        served = None if server is None else all_answers(server, texts, f"asking {server.url}", line)
        check_parts(recipe, records, texts, served, found.parts, line)
    if model is not None:
        of_model = of_part(server, recipe.model) if server and recipe and recipe.model else server
        check_model(model, records, texts, values, quants, of_model, found.rows, line)


def _interrupted(found: _Found) -> NoReturn:
    """Show what is finished."""
    found.show()
    _print_faults(found.parts)
    names = [*found.rows, *(part.name for part in found.parts)]
    done = f"the figures above are of {', '.join(names)}; none" if names else "nothing"
    click.echo(f"interrupted; {done} is in the run store; start again with:\n  {this_command()}", err=True)
    sys.exit(INTERRUPTED)


def _print_faults(parts: Sequence[PartFound]) -> bool:
    """Print them; whether there are any."""
    faults = [f"{part.name}: {fault}" for part in parts for fault in part.faults]
    for fault in faults:
        click.echo(f"error: {fault}", err=True)
    return bool(faults)


def _document(row: CheckedRewards, url: str | None) -> dict[str, Any]:
    labels = {label: _figures(found) for label, found in row.labels.items()}
    return {**_figures(row.reward), **({"labels": labels} if labels else {}), "meta": row.meta or {"url": url}}


def _figures(row: Agreement) -> dict[str, float | None]:
    """NaN (the correlation of equal scores) as null: JSON has no NaN."""
    return {name: value if value == value else None for name, value in vars(row).items()}


def _records(file: Path | None, failures: Failures, *, is_strict: bool) -> list[Record]:
    """Those that can be read; the others go to `failures`."""
    records = _built_in() if file is None else records_in(file, keep_broken=not is_strict)
    for record in records:
        if record.error is not None:
            failures.add(record.line, record.error)
    return [record for record in records if record.error is None]


def _built_in() -> list[Record]:
    """Held-out preferences of the demo's tasks: short texts that any model can score."""
    from qserve.demo.preferences import held_out_preferences
    from qserve.demo.tasks import TASKS
    from qserve.reward.evaluation.records import Record

    preferences = [one for task in TASKS for one in held_out_preferences(task, 8, seed=7)]
    return [
        Record(
            line,
            tuple(_turns(one.question, answer) for answer in (one.chosen, one.rejected[0])),
            1,
            one.task,
            {"reference": one.chosen},
        )
        for line, one in enumerate(preferences, 1)
    ]


def _turns(question: str, answer: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
