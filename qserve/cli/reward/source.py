"""Rewards from a model or recipe in this process. Imports torch only when a model is loaded."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qserve.cli.progress import ProgressLine
from qserve.cli.reward.options import request_of, settings_of
from qserve.cli.reward.recipe_source import RecipeSource, recipe_to_score
from qserve.cli.reward.texts import Answered, Parts, Rewards, TextToScore, scored
from qserve.errors import QserveError
from qserve.packages import missing_to_serve, why_no_server
from qserve.reward.find import find_reward, plan_reward
from qserve.reward.recipe import is_recipe
from qserve.service.machine import hardware_of

if TYPE_CHECKING:
    from qserve.reward.scoring.scorer import RewardScorer

__all__ = ["all_answers", "check_installed", "local_rewards", "opened_rewards", "opened_scorer"]

# Texts of so many rows are one part: few enough that answers come every few seconds, enough to fill the rows.
_ROWS_AT_ONCE = 4


@contextlib.contextmanager
def opened_rewards(reward: str, values: dict[str, Any], line: ProgressLine) -> Iterator[tuple[Rewards, dict[str, Any]]]:
    """The rewards function of a model or recipe in this process, and its metadata."""
    if not is_recipe(reward):
        own = opened_scorer(reward, values, line)
        yield local_rewards(own), own.meta
        return
    recipe = recipe_to_score(Path(reward).expanduser().absolute(), values)
    scorer = opened_scorer(recipe.model.path, values, line) if recipe.model is not None else None
    source = RecipeSource(recipe, scorer)
    try:
        yield source, source.meta
    finally:
        source.close()


def opened_scorer(reward: str, values: dict[str, Any], line: ProgressLine | None = None) -> RewardScorer:
    """The scorer of a command's options. Takes seconds: torch is imported here. `line` is told how far it is."""
    check_installed()
    settings, hardware, request = settings_of(dict(values)), hardware_of(None), request_of(values)
    plan_reward(find_reward(reward, settings), hardware, request)  # its refusals need no torch
    if line is not None and "torch" not in sys.modules:
        line.phase("importing torch")
    from qserve.reward.open import open_scorer

    if line is None:
        scorer = open_scorer(reward, settings, hardware, request)
    else:
        line.phase(f"loading {reward}")
        scorer = open_scorer(reward, settings, hardware, request, on_progress=_reporting_on(line, reward))
    for note in scorer.loaded.notes:
        click.echo(f"note: {note}", err=True)
    return scorer


def _reporting_on(line: ProgressLine, reward: str) -> Callable[[float], None]:
    return lambda share: line.phase(f"loading {reward}: {100 * share:.0f} %", is_short=True)


def check_installed() -> None:
    """Raises ModuleNotFoundError as an import would that takes seconds, where what computes rewards is missing."""
    missing = ["qserve.reward.scoring"] if why_no_server() is not None else missing_to_serve()
    if missing:
        raise ModuleNotFoundError(name=missing[0].replace("-", "_"))


def local_rewards(scorer: RewardScorer) -> Rewards:
    """The rewards function of a scorer in this process."""
    from qserve.reward.failures import TextRefused
    from qserve.reward.scoring.scorer import Score, ScoreItem

    labels = scorer.loaded.checkpoint.labels

    def item_of(one: TextToScore) -> ScoreItem | str:
        try:
            encoded = scorer.template.encode(one.content)
            item = ScoreItem(encoded.token_ids, truncated=encoded.truncated)
            scorer.rule.pooled(item)
            return item
        except TextRefused as error:
            return str(error)

    def rewards(texts: Sequence[TextToScore]) -> Parts:
        part: list[ScoreItem | str] = []
        num_tokens = 0
        for index, one in enumerate(texts):
            if num_tokens >= _ROWS_AT_ONCE * scorer.row_tokens and one.group != texts[index - 1].group:
                yield answers(part)
                part, num_tokens = [], 0
            item = item_of(one)
            part.append(item)
            num_tokens += 0 if isinstance(item, str) else len(item.token_ids)
        if part:
            yield answers(part)

    def answers(wanted: Sequence[ScoreItem | str]) -> list[Answered]:
        read = [item for item in wanted if not isinstance(item, str)]
        outcomes = iter(scored(scorer, read))
        found = [item if isinstance(item, str) else next(outcomes) for item in wanted]
        return [outcome_json(one) if isinstance(one, Score) else {"error": str(one)} for one in found]

    def outcome_json(score: Score) -> Answered:
        steps: Answered = {} if score.steps is None else {"steps": list(score.steps)}
        if score.attributes is not None:
            steps["attributes"] = dict(zip(labels, score.attributes, strict=True))
        return {"reward": score.reward, **steps, "num_tokens": score.num_tokens, "truncated": score.truncated}

    return rewards


def all_answers(rewards: Rewards, texts: Sequence[TextToScore], what: str, line: ProgressLine) -> list[Answered]:
    """The answers to all texts; `line` says how far it is."""
    line.phase(what)
    answers: list[Answered] = []
    with contextlib.closing(rewards(texts)) as parts:
        for part in parts:
            answers += part
            line.count(len(answers), len(texts))
    if len(answers) != len(texts):
        raise QserveError(f"{len(answers)} answers came for {len(texts)} texts")
    return answers
