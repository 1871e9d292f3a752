"""What each part of a recipe says of texts that are checked: how often it says anything, and how often it is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qserve.reward.evaluation.records import Record
from qserve.reward.judges.judge import JudgeStats

__all__ = ["JudgeFound", "PartFound", "judge_found", "part_found"]

_BIASED = 0.2
"""A judge whose first answer wins in seven of ten comparisons or in three is worth a word."""
_EXACT = 1e-5


@dataclass(frozen=True)
class JudgeFound:
    """`unparsable_example` is the end of an answer in which no verdict was found; empty where all were read."""

    num_verdicts: int
    num_unparsable: int
    max_unparsable: float
    position_bias: float | None
    unparsable_example: str


@dataclass(frozen=True)
class PartFound:
    """One part of a recipe on all texts.

    Attributes:
        name: the part's.
        kind: `model`, `rule` or `judge`.
        weight: what it counts in the reward.
        num_texts: texts that it was asked about.
        num_without: texts of which it says nothing.
        mean, lowest, highest: of what it says; None where it says nothing of any.
        num_preferences: preferences of which it says something of every answer.
        num_right, num_tied: of these: every chosen answer above every rejected one, or as high.
        served_difference: the largest difference between what a server told and what was computed here; None where
            no server was asked, or nothing can be computed here.
        judge: of a judge.
        faults: what is wrong with it, a sentence each.
        notes: what one should know of it, likewise.
    """

    name: str
    kind: str
    weight: float
    num_texts: int
    num_without: int
    mean: float | None
    lowest: float | None
    highest: float | None
    num_preferences: int
    num_right: int
    num_tied: int
    served_difference: float | None
    judge: JudgeFound | None
    faults: tuple[str, ...]
    notes: tuple[str, ...]


def part_found(
    name: str,
    kind: str,
    weight: float,
    records: Sequence[Record],
    values: Sequence[float | None],
    *,
    why_without: Sequence[str] = (),
    served_difference: float | None = None,
    judge: JudgeFound | None = None,
    faults: Sequence[str] = (),
) -> PartFound:
    """`values` are of all contents of `records` in their order, None where the part says nothing.

    `why_without` are reasons for those, in words. `faults` are what the caller knows to be wrong.
    """
    known = [value for value in values if value is not None]
    margins = _margins(records, values)
    return PartFound(
        name,
        kind,
        weight,
        len(values),
        len(values) - len(known),
        sum(known) / len(known) if known else None,
        min(known, default=None),
        max(known, default=None),
        len(margins),
        sum(margin > 0 for margin in margins),
        sum(margin == 0 for margin in margins),
        served_difference,
        judge,
        (*_faults(len(values), len(known), why_without, served_difference, judge), *faults),
        tuple(_notes(known, len(values), why_without, judge)),
    )


def judge_found(stats: JudgeStats, max_unparsable: float) -> JudgeFound:
    """What a judge counted."""
    return JudgeFound(
        stats.num_verdicts, stats.num_unparsable, max_unparsable, stats.position_bias, stats.unparsable_example
    )


def _margins(records: Sequence[Record], values: Sequence[float | None]) -> list[float]:
    """The lowest chosen value minus the highest rejected one, of each preference with a value for every answer."""
    margins, start = [], 0
    for record in records:
        own = values[start : start + len(record.contents)]
        start += len(record.contents)
        known = [value for value in own if value is not None]
        if record.num_chosen is not None and len(known) == len(own):
            known = record.alike(known)
            margins.append(min(known[: record.num_chosen]) - max(known[record.num_chosen :]))
    return margins


def _faults(
    num_texts: int, num_said: int, why_without: Sequence[str], difference: float | None, judge: JudgeFound | None
) -> list[str]:
    faults = []
    if not num_said:
        why = f": {why_without[0]}" if why_without else ""
        faults.append(f"it has no value for any of the {num_texts} texts{why}")
    if judge is not None and judge.num_unparsable > judge.max_unparsable * judge.num_verdicts:
        example = f"; one of them ends: {judge.unparsable_example!r}" if judge.unparsable_example else ""
        faults.append(
            f"{judge.num_unparsable} of {judge.num_verdicts} verdicts can't be read (max_unparsable "
            f"{judge.max_unparsable:g}){example}"
        )
    if difference is not None and difference > _EXACT:
        faults.append(
            f"the values of the server differ by up to {difference:.3g}: it was started with a different file"
        )
    return faults


def _notes(known: Sequence[float], num_texts: int, why_without: Sequence[str], judge: JudgeFound | None) -> list[str]:
    notes = []
    if 0 < len(known) < num_texts:
        why = f", for example: {why_without[0]}" if why_without else ""
        notes.append(f"it has no value for {num_texts - len(known)} of {num_texts} texts{why}")
    if len(known) > 1 and min(known) == max(known):
        notes.append(f"it is {known[0]:g} for every text, so training learns nothing from it")
    if judge is not None and judge.position_bias is not None and abs(judge.position_bias) > _BIASED:
        place = "first" if judge.position_bias > 0 else "second"
        share = 100 * (0.5 + abs(judge.position_bias))
        notes.append(f"the {place} answer wins {share:.0f} % of comparisons; both orders are averaged")
    return notes
