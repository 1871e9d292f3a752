"""`qserve eval-reward`: accuracy of a reward model on preference data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qserve.cli.options.command import Command, reward_revision_option
from qserve.cli.options.json_output import add_json_flag, print_json
from qserve.cli.options.url import ServerUrl
from qserve.cli.progress import ProgressLine, progress_line
from qserve.cli.reward.keep import keep, state_option
from qserve.cli.reward.options import loading_options, reward_options
from qserve.cli.reward.rows import answers_of, by_record
from qserve.cli.reward.rows_file import RowsOut
from qserve.cli.reward.scored_rows import (
    Failures,
    ScoreRequest,
    check_which_reward,
    kept_if_stopped,
    rows_in,
    write_rows,
)
from qserve.cli.reward.served_source import ServedRewards, server_options
from qserve.cli.reward.show import show_against, show_attributes, show_next, show_preferences, show_quality
from qserve.cli.reward.source import all_answers
from qserve.cli.reward.texts import Answered, records_in, texts_of
from qserve.errors import UnusableResult, UsageError

if TYPE_CHECKING:
    from qserve.reward.evaluation.accuracy import Accuracy, PreferenceReport
    from qserve.reward.evaluation.calibration import Calibration
    from qserve.reward.evaluation.length_bias import LengthBias
    from qserve.reward.evaluation.records import Record

__all__ = ["command"]

_NO_PREFERENCE = "it states no preference: it needs chosen and rejected"
_Scored = tuple["Record", list[Answered]]


@dataclass(frozen=True)
class _Measured:
    """What the rewards of a file of preferences show."""

    report: PreferenceReport
    attributes: Sequence[Accuracy]
    calibration: Calibration
    length_bias: LengthBias

    def to_json(self) -> dict[str, Any]:
        """The fields."""
        return {
            **asdict(self.report),
            "attributes": [asdict(one) for one in self.attributes],
            "calibration": asdict(self.calibration),
            "length_bias": _without_nan(asdict(self.length_bias)),
        }


@click.command("eval-reward", cls=Command)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--reward", default="demo", show_default=True, help="A folder, a single file, a hub id, or demo.")
@reward_revision_option
@server_options
@click.option("--against", type=ServerUrl(), help="A second server, to compare its rewards with the first one's.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="File for rows, in the format of `qserve score`."
)
@click.option("--resume", is_flag=True, help="Continue an --output that was interrupted.")
@click.option("--strict", is_flag=True, help="Stop at the first line that can't be scored.")
@add_json_flag
@state_option
@reward_options
@loading_options
def command(
    file: Path,
    reward: str,
    url: str | None,
    model: str | None,
    api_key: str | None,
    concurrency: int,
    against: str | None,
    output: Path | None,
    resume: bool,
    strict: bool,
    as_json: bool,
    state_dir: Path | None,
    **values: Any,
) -> None:
    """Measure accuracy on preferences (chosen, rejected) by subset, with confidence intervals, ties and margins; and
    the calibration and length bias of the model.

    A file with one chosen answer among several is scored as best-of-n (RewardBench 2); one with three styles of each
    answer as easy, normal and hard (RM-Bench). Lines that can't be scored are left out.

    \b
    qserve eval-reward preferences.jsonl --reward ./my-reward-model
    qserve eval-reward reward-bench-2.jsonl --url http://127.0.0.1:8000
    qserve eval-reward pairs.jsonl --reward ./new --against http://127.0.0.1:8000
    qserve eval-reward pairs.jsonl --reward ./my-model --output o.jsonl --resume

    Exit status: 0, 1 the rows can't be written, 2 bad input, 5 the server stopped answering, 6 some lines were left
    out, 130 after Ctrl-C. With --output the rows so far are kept.
    """
    check_which_reward(url)
    if resume and output is None:
        raise UsageError("--resume needs the file of rows that it continues: --output rows.jsonl")
    request, failures = ScoreRequest(file, reward, url, model, api_key, concurrency, values), Failures()
    with progress_line() as line:
        line.phase(f"reading {file.name}", is_short=True)
        records = _preferences(records_in(file, keep_broken=not strict), is_strict=strict)
        out = RowsOut() if output is None else rows_in(request, output, records, {}, resume=resume)
        second = None if against is None else ServedRewards(against, None, None)
        if second is not None:
            second.check(texts_of(records))
        failures.add_kept(records, out.kept)
        answered: list[_Scored] = list(zip(records, map(answers_of, out.kept), strict=False))
        with kept_if_stopped(out, len(records)):
            write_rows(request, records, out, line, failures, lambda *one: answered.append(one), is_strict=strict)
            scored = [one for one in answered if one[1] and _rewards(*one) is not None]
            others = None if second is None else _others(second, scored, line)
        if not scored:
            raise UsageError(f"no line of {file} could be scored; line {failures.lines[0][0]}: {failures.lines[0][1]}")
    found = _measured(scored)
    document = {"file": file.name, "model": request.name, **found.to_json()}
    if against is not None and others is not None:
        document["against"] = _agreement(against, scored, others)
    document |= {"num_left_out": len(failures.lines), "errors": failures.to_json()}
    keep(state_dir, "reward preferences", document, url, api_key)
    print_json(document) if as_json else _show(found, document, request)
    if failures.lines:
        raise UnusableResult(
            f"{len(failures.lines):,} of {len(records):,} lines could not be scored; the figures are of the others"
        )


def _preferences(records: Sequence[Record], *, is_strict: bool) -> list[Record]:
    """The records, those without a preference as broken ones. Raises UsageError where none states one, or their shapes
    are mixed; strict: where one does not.
    """
    from qserve.reward.evaluation.accuracy import shape_of

    stated = [record for record in records if record.num_chosen is not None]
    shape_of(stated if stated and not is_strict else records)
    return [
        record if record.num_chosen is not None else replace(record, contents=(), error=record.error or _NO_PREFERENCE)
        for record in records
    ]


def _others(server: ServedRewards, scored: Sequence[_Scored], line: ProgressLine) -> list[list[float] | None]:
    """A second model's rewards of each record; None where it has none."""
    records = [record for record, _ in scored]
    answers = all_answers(server, texts_of(records), "scoring with the second model", line)
    return [_rewards(record, own) for part in by_record(records, [answers]) for record, own in part]


def _rewards(record: Record, answers: Sequence[Answered]) -> list[float] | None:
    """Equal texts have equal rewards."""
    if any("error" in answer for answer in answers):
        return None
    return record.alike([float(answer["reward"]) for answer in answers])


def _measured(scored: Sequence[_Scored]) -> _Measured:
    from qserve.reward.evaluation.accuracy import by_attribute, evaluate
    from qserve.reward.evaluation.calibration import calibration
    from qserve.reward.evaluation.length_bias import length_bias

    records = [record for record, _ in scored]
    rewards = [_rewards(*one) or [] for one in scored]
    lengths = [[int(answer["num_tokens"]) for answer in own] for _, own in scored]
    report = evaluate(records, rewards)
    each = by_attribute(records, [[answer.get("attributes") or {} for answer in own] for _, own in scored])
    bias = length_bias(rewards, lengths, [record.num_chosen or 0 for record in records])
    return _Measured(report, each, calibration(report.margins), bias)


def _agreement(url: str, scored: Sequence[_Scored], others: Sequence[list[float] | None]) -> dict[str, Any]:
    """How often both models prefer the same answer, and the rank correlation of their rewards."""
    from qserve.reward.evaluation.accuracy import evaluate
    from qserve.reward.evaluation.agreement import rank_correlation

    both = [(one, _rewards(*one) or [], theirs) for one, theirs in zip(scored, others, strict=True) if theirs]
    if not both:
        raise UsageError(f"{url} scores none of the preferences; `qserve eval-reward --url {url}` says why")
    records = [record for (record, _), _, _ in both]
    first, second = [ours for _, ours, _ in both], [theirs for _, _, theirs in both]
    ours, theirs = evaluate(records, first), evaluate(records, second)
    same = sum((a > 0) == (b > 0) for a, b in zip(ours.margins, theirs.margins, strict=True)) / len(ours.margins)
    flat = [[value for one in side for value in one] for side in (first, second)]
    found = {
        "url": url,
        "decided_alike": same,
        "rank_correlation": rank_correlation(*flat),
        "accuracy": theirs.overall.accuracy,
        "num_left_out": len(scored) - len(both),
    }
    return _without_nan(found)


def _without_nan(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN."""
    return {name: None if value != value else value for name, value in values.items()}


def _show(found: _Measured, document: Mapping[str, Any], request: ScoreRequest) -> None:
    show_preferences(found.report, request.name, request.file.name)
    show_attributes(found.attributes)
    show_quality(found.calibration, found.length_bias)
    if "against" in document:
        show_against(document["against"])
    show_next(found.report, request.words(), None if request.url else request.words(has_loading=False))
