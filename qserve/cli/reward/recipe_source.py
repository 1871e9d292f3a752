"""Rewards of a recipe in this process: its model, rules and judges, combined as the worker does it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qserve.cli.reward.texts import Answered, TextToScore
from qserve.errors import UsageError
from qserve.reward.recipe import Recipe, read_recipe

if TYPE_CHECKING:
    from qserve.reward.scoring.scorer import RewardScorer

__all__ = ["RecipeSource", "recipe_to_score"]


class RecipeSource:
    """Called with texts it tells their rewards (`texts.Rewards`). `close` ends what its parts run."""

    def __init__(self, recipe: Recipe, scorer: RewardScorer | None) -> None:
        """`scorer` is of the recipe's model, where it has one."""
        from qserve.reward.recipe.parts import RecipeScorer

        self._recipe, self._scorer = recipe, scorer
        self._parts = RecipeScorer(recipe)
        self._parts.start()
        self._runner = asyncio.Runner()
        self.meta: dict[str, Any] = {**(scorer.meta if scorer is not None else {}), **self._parts.meta}

    def __call__(self, asked: Sequence[TextToScore]) -> list[Answered]:
        return self._runner.run(self._answers(asked))

    def close(self) -> None:
        """End the rules' process and the connections to judges."""
        self._runner.run(self._parts.close())
        self._runner.close()

    async def _answers(self, asked: Sequence[TextToScore]) -> list[Answered]:
        """What fails for one of several is told with the others of its line."""
        from qserve.wire.errors import ApiError

        try:
            return await self._scored(asked)
        except ApiError as error:
            groups = list(dict.fromkeys(one.group for one in asked))
            if len(groups) == 1:
                return [{"error": error.message} for _ in asked]
            parts = [await self._answers([one for one in asked if one.group == group]) for group in groups]
            return [answer for part in parts for answer in part]

    async def _scored(self, asked: Sequence[TextToScore]) -> list[Answered]:
        from qserve.reward.protocols.job import Text

        texts = [
            Text(one.content if isinstance(one.content, str) else tuple(one.content), "text", reference=one.reference)
            for one in asked
        ]
        of_model = None if self._scorer is None else _scores(self._scorer, asked)
        names = [part.name for part in self._recipe.parts]
        return [
            {
                "reward": score.reward, "attributes": dict(zip(names, score.attributes or (), strict=True)),
                "num_tokens": score.num_tokens, "truncated": score.truncated,
            }
            for score in await self._parts.scores(texts, of_model)
        ]  # fmt: skip


def recipe_to_score(file: Path, values: dict[str, Any]) -> Recipe:
    """The recipe in `file`. Raises UsageError as `read_recipe`, and for what only a server can do."""
    recipe = read_recipe(file)
    if recipe.asks_served:
        raise UsageError(
            f"{file}: a judge in it is the chat model of the same service (url: served), and here is none; start it "
            f"with qserve up --model … --reward {file} and ask it by --url"
        )
    if recipe.model is None:
        from qserve.reward.settings import FLAGS, RewardSettings

        given = next((name for name in FLAGS if values.get(name) != getattr(RewardSettings(), name)), None)
        if given is not None:
            raise UsageError(f"--{given.replace('_', '-')} says how a model is asked, and {file} names none")
    return recipe


def _scores(scorer: RewardScorer, asked: Sequence[TextToScore]) -> list[Any]:
    from qserve.model.failures import SequenceFailed
    from qserve.reward.items import ScoreItem
    from qserve.wire.errors import from_failure

    encoded = [scorer.template.encode(one.content) for one in asked]
    outcomes = scorer.score_now([ScoreItem(one.token_ids, truncated=one.truncated) for one in encoded])
    failed = next((one for one in outcomes if isinstance(one, SequenceFailed)), None)
    if failed is not None:
        raise from_failure(failed.code, str(failed))
    return outcomes
