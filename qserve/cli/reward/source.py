"""Rewards from a model or recipe in this process. Imports torch only when a model is loaded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qserve.cli.options.planning import hardware_of
from qserve.cli.reward.options import LOADING_FLAGS, settings_of
from qserve.cli.reward.recipe_source import RecipeSource, recipe_to_score
from qserve.cli.reward.texts import Answered, Rewards, TextToScore, scored, together
from qserve.errors import QserveError
from qserve.planner import plan_request
from qserve.reward.recipe import is_recipe

if TYPE_CHECKING:
    from qserve.reward.scoring.scorer import RewardScorer

__all__ = ["local_rewards", "opened_rewards", "opened_scorer", "with_progress"]

_AT_ONCE = 256


@contextlib.contextmanager
def opened_rewards(reward: str, values: dict[str, Any]) -> Iterator[tuple[Rewards, dict[str, Any]]]:
    """The rewards function of a model or recipe in this process, and its metadata."""
    if not is_recipe(reward):
        own = opened_scorer(reward, values)
        yield local_rewards(own), own.meta
        return
    recipe = recipe_to_score(Path(reward).expanduser().absolute(), values)
    scorer = opened_scorer(recipe.model.path, values) if recipe.model is not None else None
    source = RecipeSource(recipe, scorer)
    try:
        yield source, source.meta
    finally:
        source.close()


def opened_scorer(reward: str, values: dict[str, Any]) -> RewardScorer:
    """The scorer of a command's options. Takes seconds: torch is imported here."""
    from qserve.reward.open import open_scorer

    request = plan_request(**{name: values[name] for name in LOADING_FLAGS if values.get(name) is not None})
    scorer = open_scorer(reward, settings_of(dict(values)), hardware_of(None), request)
    for note in scorer.loaded.notes:
        click.echo(f"note: {note}", err=True)
    return scorer


def local_rewards(scorer: RewardScorer) -> Rewards:
    """The rewards function of a scorer in this process."""
    from qserve.reward.failures import TextRefused
    from qserve.reward.scoring.scorer import Score, ScoreItem

    labels = scorer.loaded.checkpoint.labels

    def items(texts: Sequence[TextToScore]) -> Iterator[ScoreItem | str]:
        for one in texts:
            try:
                encoded = scorer.template.encode(one.content)
                item = ScoreItem(encoded.token_ids, truncated=encoded.truncated)
                scorer.rule.pooled(item)
                yield item
            except TextRefused as error:
                yield str(error)

    def rewards(texts: Sequence[TextToScore]) -> list[Answered]:
        wanted = list(items(texts))
        read = [item for item in wanted if not isinstance(item, str)]
        outcomes = iter(scored(scorer, read))
        answers: list[Answered] = []
        for item in wanted:
            outcome = item if isinstance(item, str) else next(outcomes)
            answers.append(outcome_json(outcome) if isinstance(outcome, Score) else {"error": str(outcome)})
        return answers

    def outcome_json(score: Score) -> Answered:
        steps: Answered = {} if score.steps is None else {"steps": list(score.steps)}
        if score.attributes is not None:
            steps["attributes"] = dict(zip(labels, score.attributes, strict=True))
        return {"reward": score.reward, **steps, "num_tokens": score.num_tokens, "truncated": score.truncated}

    return rewards


def with_progress(rewards: Rewards, texts: Sequence[TextToScore], what: str) -> list[Answered]:
    """All answers, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    parts = together(texts, [text.group for text in texts], _AT_ONCE)
    shown = track(parts, description=what, console=console, disable=not console.is_terminal, transient=True)
    answers = [answer for part in shown for answer in rewards(part)]
    if len(answers) != len(texts):
        raise QserveError(f"{len(answers)} answers came for {len(texts)} texts")
    return answers
