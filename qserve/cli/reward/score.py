"""`qserve score`: rewards for a file of prompts and answers, by a model in this process or by a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from qserve.cli.options.command import Command, reward_revision_option
from qserve.cli.options.json_output import add_json_flag, print_json
from qserve.cli.progress import progress_line
from qserve.cli.reward.options import loading_options, reward_options
from qserve.cli.reward.rows_file import RowsOut, StandardOutput
from qserve.cli.reward.scored_rows import (
    Failures,
    ScoreRequest,
    Written,
    check_which_reward,
    kept_if_stopped,
    rows_in,
    write_rows,
)
from qserve.cli.reward.served_source import server_options
from qserve.cli.reward.show import show_score
from qserve.cli.reward.texts import Answered, records_in
from qserve.errors import UnusableResult, UsageError
from qserve.reward.evaluation.records import Record

__all__ = ["command"]


@dataclass
class _Tally:
    """Of the texts that this run scored."""

    num_texts: int = 0
    num_tokens: int = 0
    num_truncated: int = 0

    def add(self, _: Record, answers: Sequence[Answered]) -> None:
        """Count a record's texts, without those that have no reward."""
        for answer in answers:
            if "error" not in answer:
                self.num_texts += 1
                self.num_tokens += answer["num_tokens"]
                self.num_truncated += bool(answer.get("truncated"))


@click.command("score", cls=Command)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--reward", default="demo", show_default=True, help="A folder, a single file, a hub id, or demo.")
@reward_revision_option
@server_options
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="File for rows [standard output].")
@click.option("--resume", is_flag=True, help="Continue an --output that was interrupted.")
@click.option("--normalize", is_flag=True, help="(reward - mean) / std, as the checkpoint records them.")
@click.option("--strict", is_flag=True, help="Stop at the first line that can't be scored.")
@add_json_flag
@reward_options
@loading_options
def command(
    file: Path,
    reward: str,
    url: str | None,
    model: str | None,
    api_key: str | None,
    concurrency: int,
    output: Path | None,
    resume: bool,
    normalize: bool,
    strict: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Score a file of JSON lines: each line is written back with its rewards, as soon as it has them.

    A line has `messages`, `text`, `prompt` with `response` or `responses`, or `chosen` with `rejected`. A line that
    can't be scored gets an `error` that says why.

    \b
    qserve score answers.jsonl --reward ./my-model --output rewards.jsonl
    qserve score answers.jsonl --reward ./my-model --output rewards.jsonl --resume
    qserve score answers.jsonl --reward adapter/ --base ./Qwen3-8B --quant 4bit
    qserve score answers.jsonl --url http://127.0.0.1:8000 --output rewards.jsonl

    Exit status: 0, 1 the rows can't be written, 2 bad input, 5 the server stopped answering, 6 some lines could not
    be scored, 130 after Ctrl-C. The rows so far are kept; --resume continues.
    """
    check_which_reward(url)
    if output is None and (resume or as_json):
        raise UsageError(f"{'--resume' if resume else '--json'} needs a file for the rows: --output rewards.jsonl")
    request, failures, tally = (
        ScoreRequest(file, reward, url, model, api_key, concurrency, values),
        Failures(),
        _Tally(),
    )
    with progress_line() as line:
        line.phase(f"reading {file.name}", is_short=True)
        records = records_in(file, keep_broken=not strict)
        out: RowsOut = StandardOutput()
        if output is not None:
            out = rows_in(request, output, records, {"--normalize": normalize}, resume=resume)
        failures.add_kept(records, out.kept)
        with kept_if_stopped(out, len(records)):
            done = write_rows(request, records, out, line, failures, tally.add, normalize=normalize, is_strict=strict)
    document = _document(request, output, records, len(out.kept), tally, failures, done)
    print_json(document) if as_json else show_score(document, request.words())
    if failures.lines:
        told = f"{len(failures.lines):,} of {len(records):,} lines could not be scored"
        raise UnusableResult(f"{told}; the 'error' of each in {output or 'its row'} says why")


def _document(
    request: ScoreRequest,
    output: Path | None,
    records: Sequence[Record],
    num_kept: int,
    tally: _Tally,
    failures: Failures,
    done: Written,
) -> dict[str, Any]:
    """What --json prints. Times and texts are those of this run, without the rows that it found."""
    return {
        "file": str(request.file),
        "output": None if output is None else str(output),
        "model": request.name,
        "num_rows": len(records),
        "num_kept_rows": num_kept,
        "num_failed_rows": len(failures.lines),
        "has_preferences": any(record.num_chosen is not None for record in records),
        **vars(tally),
        "duration_s": round(done.duration_s, 3),
        "tokens_per_s": round(tally.num_tokens / max(done.duration_s, 1e-9), 1),
        "errors": failures.to_json(),
        "meta": dict(done.meta),
    }
