"""Rewards for a command: from a model in this process, or from a server. Neither is imported before it is used."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qserve.cli.options.planning import hardware_of
from qserve.cli.reward.options import settings_of
from qserve.cli.reward.recipe_source import RecipeSource, recipe_to_score
from qserve.cli.reward.texts import Answered, Rewards, TextToScore
from qserve.errors import QserveError, UsageError
from qserve.planner import PlanRequest
from qserve.reward.recipe import is_recipe

if TYPE_CHECKING:
    from qserve.reward.scoring.scorer import RewardScorer

__all__ = ["local_rewards", "opened_rewards", "opened_scorer", "served_rewards", "with_progress"]

Item = TypeVar("Item")

_AT_ONCE = 256
_SERVED_AT_ONCE = 32


@contextlib.contextmanager
def opened_rewards(reward: str, values: dict[str, Any]) -> Iterator[tuple[Rewards, dict[str, Any]]]:
    """What tells the rewards of a model or a recipe in this process, and its meta."""
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
    """The scorer that a command's options describe. Takes seconds: torch is imported here."""
    from qserve.reward.open import open_scorer

    request = PlanRequest(
        **{name: values[name] for name in ("quant", "dtype", "max_num_batched_tokens") if values.get(name) is not None}
    )
    scorer = open_scorer(reward, settings_of(dict(values)), hardware_of(None), request)
    for note in scorer.loaded.notes:
        click.echo(f"note: {note}", err=True)
    return scorer


def local_rewards(scorer: RewardScorer) -> Rewards:
    """Of a scorer in this process."""
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
        asked = list(items(texts))
        outcomes = iter(scorer.score_now([item for item in asked if not isinstance(item, str)]))
        answers: list[Answered] = []
        for item in asked:
            outcome = item if isinstance(item, str) else next(outcomes)
            answers.append(outcome_json(outcome) if isinstance(outcome, Score) else {"error": str(outcome)})
        return answers

    def outcome_json(score: Score) -> Answered:
        steps: Answered = {} if score.steps is None else {"steps": list(score.steps)}
        if score.attributes is not None:
            steps["attributes"] = dict(zip(labels, score.attributes, strict=True))
        return {"reward": score.reward, **steps, "num_tokens": score.num_tokens, "truncated": score.truncated}

    return rewards


def served_rewards(url: str, model: str | None, api_key: str | None) -> Rewards:
    """Of a server that answers POST /v1/reward. Raises UsageError when it does not."""

    def rewards(texts: Sequence[TextToScore]) -> list[Answered]:
        return asyncio.run(_ask(url, model, api_key or os.environ.get("QSERVE_API_KEY"), texts))

    return rewards


async def _ask(url: str, model: str | None, api_key: str | None, texts: Sequence[TextToScore]) -> list[Answered]:
    import aiohttp

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    answers: list[Answered] = [{"error": "not asked"}] * len(texts)
    # A request holds texts or conversations, not both, and references for all of its texts or for none.
    kinds: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for index, text in enumerate(texts):
        kind = "texts" if isinstance(text.content, str) else "conversations"
        kinds[kind, text.reference is not None].append(index)
    parts = [
        (kind, part)
        for (kind, _), indices in kinds.items()
        for part in _together(indices, [texts[index].group for index in indices], _SERVED_AT_ONCE)
    ]
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(3600)) as session:

            async def ask(kind: str, indices: list[int]) -> None:
                body: dict[str, Any] = {kind: [texts[index].content for index in indices]}
                if texts[indices[0]].reference is not None:
                    body["references"] = [texts[index].reference for index in indices]
                if model:
                    body["model"] = model
                async with session.post(f"{url.rstrip('/')}/v1/reward", json=body) as answer:
                    data = await answer.json()
                    groups = _together(indices, [texts[index].group for index in indices], 1)
                    if answer.status != 200 and len(groups) > 1:  # one bad line must not cost the others theirs
                        await asyncio.gather(*(ask(kind, group) for group in groups))
                        return
                    failed = [{"error": data["error"]["message"]}] * len(indices) if answer.status != 200 else None
                    told = {"judges": data["meta"]["judges"]} if "judges" in data.get("meta", {}) else {}
                    rows = failed or [{**row, **told} for row in data["data"]]
                for index, row in zip(indices, rows, strict=True):
                    answers[index] = row

            await asyncio.gather(*(ask(kind, indices) for kind, indices in parts))
    except (aiohttp.ClientError, KeyError, ValueError) as error:
        raise UsageError(
            f"{url} did not answer POST /v1/reward as qserve does ({error}); start one: qserve up --reward demo, and "
            "name it: --url http://127.0.0.1:8000"
        ) from error
    return answers


def _together(items: Sequence[Item], groups: Sequence[int], at_once: int) -> list[list[Item]]:
    """Parts of at least `at_once` items, or the rest; no group is divided."""
    parts: list[list[Item]] = [[]]
    for index, item in enumerate(items):
        if len(parts[-1]) >= at_once and groups[index] != groups[index - 1]:
            parts.append([])
        parts[-1].append(item)
    return [part for part in parts if part]


def with_progress(rewards: Rewards, texts: Sequence[TextToScore], what: str) -> list[Answered]:
    """All answers; a terminal is shown how far it is."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    parts = _together(texts, [text.group for text in texts], _AT_ONCE)
    shown = track(parts, description=what, console=console, disable=not console.is_terminal, transient=True)
    answers = [answer for part in shown for answer in rewards(part)]
    if len(answers) != len(texts):
        raise QserveError(f"{len(answers)} answers came for {len(texts)} texts")
    return answers
