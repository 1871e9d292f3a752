"""Rewards of a recipe in this process: its model, rules and judges, combined as the worker does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qserve.cli.reward.texts import Answered, Parts, TextToScore, scored, together
from qserve.errors import UsageError
from qserve.reward.judges.template import read_template
from qserve.reward.recipe import JudgePart, Recipe, is_recipe, read_recipe
from qserve.reward.recipe.config import SERVED

if TYPE_CHECKING:
    from qserve.reward.protocols.job import Text
    from qserve.reward.scoring.scorer import RewardScorer

__all__ = ["RecipeSource", "recipe_to_check", "recipe_to_score", "text_of"]

# Texts that rules and judges are asked about at once.
_AT_ONCE = 64
# Defaults for loading a model (`options.loading_options`).
_LOADED_AS_IS = {"quant": "auto", "dtype": None, "max_num_batched_tokens": None, "cpu_activations": "auto"}


class RecipeSource:
    """A callable from texts to rewards (`texts.Rewards`). `close` ends the processes and connections of its parts."""

    def __init__(self, recipe: Recipe, scorer: RewardScorer | None) -> None:
        """`scorer`: of the recipe's model, if it has one."""
        from qserve.reward.recipe.parts import RecipeScorer

        self._recipe, self._scorer = recipe, scorer
        self._parts = RecipeScorer(recipe)
        self._parts.start()
        self._runner = asyncio.Runner()
        self.meta: dict[str, Any] = {**(scorer.meta if scorer is not None else {}), **self._parts.meta}

    def __call__(self, texts: Sequence[TextToScore]) -> Parts:
        for part in together(texts, [text.group for text in texts], _AT_ONCE):
            yield self._runner.run(self._answers(part))

    def close(self) -> None:
        """End the rules' process and the connections to judges."""
        self._runner.run(self._parts.close())
        self._runner.close()

    async def _answers(self, texts: Sequence[TextToScore]) -> list[Answered]:
        """Answers of all texts; an error of one text does not affect other lines."""
        from qserve.errors import RequestFailed

        try:
            return await self._scored(texts)
        except RequestFailed as error:
            groups = list(dict.fromkeys(one.group for one in texts))
            if len(groups) == 1:
                return [{"error": str(error)} for _ in texts]
            parts = [await self._answers([one for one in texts if one.group == group]) for group in groups]
            return [answer for part in parts for answer in part]

    async def _scored(self, asked: Sequence[TextToScore]) -> list[Answered]:
        texts = [text_of(one) for one in asked]
        of_model = None if self._scorer is None else _scores(self._scorer, asked)
        names = [part.name for part in self._recipe.parts]
        return [
            {
                "reward": score.reward,
                "attributes": dict(zip(names, score.attributes or (), strict=True)),
                "num_tokens": score.num_tokens,
                "truncated": score.truncated,
            }
            for score in await self._parts.scores(texts, of_model)
        ]


def text_of(one: TextToScore) -> Text:
    """A text as the worker reads it from a request."""
    from qserve.reward.protocols.job import Text

    content = tuple(one.content) if isinstance(one.content, list) else one.content
    return Text(content, "text", reference=one.reference)


def recipe_to_check(reward: str, values: dict[str, Any], *, has_url: bool) -> Recipe | None:
    """The recipe that `reward` names, or that --judge means; None for a model.

    Raises UsageError as `recipe_to_score`; with a server its judges may be the chat model of the same service.
    """
    if values["judge"] is not None and has_url:
        template = read_template(values["judge"], f"--judge {values['judge']}", Path.cwd())
        return Recipe(Path(reward), (JudgePart("judge", 1.0, template, SERVED, ""),))
    if not is_recipe(reward):
        return None
    file = Path(reward).expanduser().absolute()
    return read_recipe(file) if has_url else recipe_to_score(file, values)


def recipe_to_score(file: Path, values: dict[str, Any]) -> Recipe:
    """The recipe in `file`. Raises UsageError as `read_recipe`, and for what only a server can do."""
    recipe = read_recipe(file)
    if recipe.asks_served:
        raise UsageError(
            f"{file}: a judge in it is the chat model of the same service (url: served); start that service: qserve "
            f"up --model … --reward {file}, then --url http://127.0.0.1:8000"
        )
    if recipe.model is None:
        from qserve.reward.settings import FLAGS, RewardSettings

        defaults = {name: getattr(RewardSettings(), name) for name in FLAGS} | _LOADED_AS_IS
        given = next((name for name, default in defaults.items() if values.get(name, default) != default), None)
        if given is not None:
            raise UsageError(f"--{given.replace('_', '-')} is about a model, and {file} names none")
    return recipe


def _scores(scorer: RewardScorer, texts: Sequence[TextToScore]) -> list[Any]:
    from qserve.model.failures import SequenceFailed
    from qserve.reward.items import ScoreItem

    encoded = [scorer.template.encode(one.content) for one in texts]
    outcomes = scored(scorer, [ScoreItem(one.token_ids, truncated=one.truncated) for one in encoded])
    failed = next((one for one in outcomes if isinstance(one, SequenceFailed)), None)
    if failed is not None:
        raise failed
    return outcomes
