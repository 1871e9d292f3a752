"""`qserve reward check` of a recipe: each rule and judge run alone, compared with a server's values of each part."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import click

from qserve.cli.progress import ProgressLine
from qserve.cli.reward.recipe_source import text_of
from qserve.cli.reward.source import all_answers
from qserve.cli.reward.texts import Answered, Parts, Rewards, TextToScore, together
from qserve.errors import UsageError
from qserve.reward.recipe import JudgePart, ModelPart, Recipe, RulePart

if TYPE_CHECKING:
    from qserve.reward.evaluation.parts import JudgeFound, PartFound
    from qserve.reward.evaluation.records import Record
    from qserve.reward.rules.process import RuleProcess

__all__ = ["check_parts", "of_part", "show_parts"]


def check_parts(
    recipe: Recipe,
    records: Sequence[Record],
    texts: Sequence[TextToScore],
    served: Sequence[Answered] | None,
    found: list[PartFound],
    line: ProgressLine,
) -> None:
    """Values of rules and judges for `texts`, which are those of `records`, and a server's values of each part.

    `found` gets each part as it is finished. `served`: the server's answers; judges are then not called here. Raises
    UsageError for a judge that can't be reached, and for a server that combines other parts.
    """
    if served is not None:
        _same_parts(recipe, served)
    for part in recipe.parts:
        part_rewards = None if served is None else [_attribute(answer, part.name) for answer in served]
        if isinstance(part, RulePart):
            found.append(_of_rule(part, records, texts, part_rewards, line))
        elif part_rewards is not None:
            found.append(_of_served(part, records, part_rewards, served or ()))
        elif isinstance(part, JudgePart):
            found.append(_of_judge(part, records, texts, line))


def of_part(rewards: Rewards, part: ModelPart) -> Rewards:
    """The model's part of the rewards of a server that combines several parts."""

    def raw(answer: Answered) -> Answered:
        return {**answer, "reward": answer["attributes"][part.name] * part.std + part.mean, "attributes": {}}

    def own(texts: Sequence[TextToScore]) -> Parts:
        for answers in rewards(texts):
            yield [answer if "error" in answer else raw(answer) for answer in answers]

    return own


def _same_parts(recipe: Recipe, served: Sequence[Answered]) -> None:
    names = next((list(answer.get("attributes") or ()) for answer in served if "error" not in answer), None)
    if names is None:
        raise UsageError(f"the server scores none of the texts: {served[0]['error']}")
    if names != list(recipe.weights):
        raise UsageError(
            f"{recipe.file} combines {', '.join(recipe.weights)}, and the server returns "
            f"{', '.join(names) or 'a single reward'}; name the file that it was started with: --reward"
        )


def _of_served(
    part: ModelPart | JudgePart,
    records: Sequence[Record],
    part_rewards: Sequence[float | None],
    served: Sequence[Answered],
) -> PartFound:
    from qserve.reward.evaluation.parts import part_found

    kind, judge = ("model", None) if isinstance(part, ModelPart) else ("judge", _counted(part, served))
    why = [answer["error"] for answer in served if "error" in answer]
    return part_found(part.name, kind, part.weight, records, part_rewards, why_without=why, judge=judge)


def _counted(part: JudgePart, served: Sequence[Answered]) -> JudgeFound | None:
    """The server's counts of a judge since its start; None if it does not report them."""
    from qserve.reward.evaluation.parts import JudgeFound

    counts = [answer["judges"][part.name] for answer in served if part.name in answer.get("judges", {})]
    if not counts:
        return None
    last = max(counts, key=lambda one: int(one["verdicts"]))
    return JudgeFound(last["verdicts"], last["unparsable"], part.max_unparsable, last.get("position_bias"), "")


def _attribute(answer: Answered, name: str) -> float | None:
    return None if "error" in answer else float(answer["attributes"][name])


def _of_rule(
    part: RulePart,
    records: Sequence[Record],
    texts: Sequence[TextToScore],
    part_rewards: Sequence[float | None] | None,
    line: ProgressLine,
) -> PartFound:
    from qserve.reward.evaluation.parts import part_found
    from qserve.reward.rules.process import RuleProcess

    process = RuleProcess([part.rule])
    try:
        answers = all_answers(_rule_source(part, process), texts, f"asking {part.name}", line)
        faults = _unreadable_references(part, process, texts)
    finally:
        process.close()
    values = [answer.get("reward") for answer in answers]
    why = [answer["error"] for answer in answers if "error" in answer]
    difference = None if part_rewards is None else _difference(part_rewards, values)
    return part_found(
        part.name, "rule", part.weight, records, values, why_without=why, served_difference=difference, faults=faults
    )


def _difference(part_rewards: Sequence[float | None], values: Sequence[float | None]) -> float:
    """The largest difference over texts for which both have a value."""
    both = ((a, b) for a, b in zip(part_rewards, values, strict=True))
    return max((abs(a - b) for a, b in both if a is not None and b is not None), default=0.0)


def _rule_source(part: RulePart, process: RuleProcess) -> Rewards:
    def rewards(texts: Sequence[TextToScore]) -> Parts:
        for one in texts:
            yield [_verdict(part, process, one)]

    return rewards


def _verdict(part: RulePart, process: RuleProcess, one: TextToScore) -> Answered:
    from qserve.reward.recipe.parts import judged

    if part.rule.needs_reference and one.reference is None:
        return {"error": f"line {one.group} has no 'reference' to compare with"}
    read = judged(text_of(one))
    (verdict,) = process.verdicts(0, [(read.response, read.reference or "")])
    return {"error": f"line {one.group}: {verdict}"} if isinstance(verdict, str) else {"reward": verdict}


def _unreadable_references(part: RulePart, process: RuleProcess, texts: Sequence[TextToScore]) -> list[str]:
    """References that the rule itself would reject: no answer can match them."""
    references = list(dict.fromkeys(one.reference for one in texts if one.reference is not None))
    if not part.rule.takes_its_reference or not references:
        return []
    if any(verdict == 1.0 for verdict in process.verdicts(0, [(one, one) for one in references])):
        return []
    return [f"no answer can match a reference: the rule {part.rule.kind} does not accept even {references[0]!r} itself"]


def _of_judge(
    part: JudgePart, records: Sequence[Record], asked: Sequence[TextToScore], line: ProgressLine
) -> PartFound:
    from qserve.reward.evaluation.parts import judge_found, part_found
    from qserve.reward.judges.judge import Judge

    # Unparsable verdicts are counted here instead of failing a request that has too many of them.
    judge = Judge(replace(part, max_unparsable=1.0, if_unparsable=math.nan))

    async def groups(texts: Sequence[TextToScore]) -> list[Answered]:
        lines = [list(line) for _, line in groupby(texts, key=lambda one: one.group)]
        return [answer for line in await asyncio.gather(*(_judged(judge, line) for line in lines)) for answer in line]

    def rewards(texts: Sequence[TextToScore]) -> Parts:
        for some in together(texts, [text.group for text in texts], 2 * part.at_once):
            yield runner.run(groups(some))

    with asyncio.Runner() as runner:
        try:
            answers = all_answers(rewards, asked, f"asking {part.name}", line)
        finally:
            runner.run(judge.close())
    values = [None if "error" in one or math.isnan(one["reward"]) else one["reward"] for one in answers]
    why = [answer["error"] for answer in answers if "error" in answer]
    found = judge_found(judge.stats, part.max_unparsable)
    return part_found(part.name, "judge", part.weight, records, values, why_without=why, judge=found)


async def _judged(judge: object, line: Sequence[TextToScore]) -> list[Answered]:
    from qserve.reward.failures import RewardFailed, TextRefused
    from qserve.reward.judges.judge import Judge
    from qserve.reward.recipe.parts import judged

    assert isinstance(judge, Judge)
    try:
        return [{"reward": value} for value in await judge.rewards([judged(text_of(one)) for one in line])]
    except TextRefused as error:
        return [{"error": f"line {line[0].group}: {error}"} for _ in line]
    except RewardFailed as error:
        raise UsageError(str(error)) from None


def show_parts(found: Sequence[PartFound]) -> None:
    """Print one row per part, and below it its faults and notes; nothing for none."""
    from rich.table import Table

    from qserve.terminal.console import Hanging, console_of

    if not found:
        return
    console = console_of()
    console.print(f"\n[bold]{found[0].num_texts:,} texts, part by part[/bold]")
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for heading in ("part", "kind", "weight", "no value", "mean", "lowest", "highest", "right", "ties"):
        table.add_column(heading, justify="left" if heading in ("part", "kind") else "right")
    table.columns[0].overflow = "fold"
    for one in found:
        table.add_row(*_cells(one))
    console.print(table)
    for one in found:
        if one.judge is not None:
            _show_judge(one)
        for note in one.notes:
            console.print(Hanging(f"{one.name}: {note}"))
        if one.served_difference is not None:
            console.print(Hanging(f"{one.name}: the server differs by at most {one.served_difference:.1e}"))


def _show_judge(one: PartFound) -> None:
    judge = one.judge
    assert judge is not None
    share = 100 * judge.num_unparsable / max(1, judge.num_verdicts)
    bias = "" if judge.position_bias is None else f", the first place wins {100 * (0.5 + judge.position_bias):.0f} %"
    click.echo(f"· {one.name}: {judge.num_verdicts} verdicts, {share:.1f} % can't be read{bias}")


def _cells(one: PartFound) -> tuple[str, ...]:
    figures = ("–" if value is None else f"{value:.3g}" for value in (one.mean, one.lowest, one.highest))
    right = f"{one.num_right} of {one.num_preferences}" if one.num_preferences else "–"
    return (one.name, one.kind, f"{one.weight:g}", str(one.num_without), *figures, right, str(one.num_tied))
