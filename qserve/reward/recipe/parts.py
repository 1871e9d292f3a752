"""Scores of each part of a recipe for a request's texts, and their weighted sum."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Hashable, Sequence
from typing import Any, TypeVar

from qserve.reward.failures import TextRefused
from qserve.reward.items import Score
from qserve.reward.judges.judge import Judge, Judged
from qserve.reward.judges.served import ServedChat
from qserve.reward.protocols.job import Text, answer_of
from qserve.reward.recipe.config import JudgePart, ModelPart, Recipe, RulePart
from qserve.reward.rules.pool import RulePool
from qserve.worker.heartbeat import Heartbeat

__all__ = ["RecipeScorer", "judged"]

_log = logging.getLogger("qserve.worker")
_BEAT_S = 1.0
T = TypeVar("T")


class RecipeScorer:
    """`scores` is for one event loop."""

    def __init__(self, recipe: Recipe, heartbeat: Heartbeat | None = None, served: ServedChat | None = None) -> None:
        """`heartbeat` is told while rules or a judge are waited for, when this process itself has nothing to do;
        `served` is the chat model of the same service."""
        self.recipe = recipe
        self._heartbeat = heartbeat
        rules = [part.rule for part in recipe.parts if isinstance(part, RulePart)]
        self._rules = RulePool(rules) if rules else None
        self._judges = {part.name: Judge(part, served) for part in recipe.parts if isinstance(part, JudgePart)}
        self.num_failed = 0

    @property
    def meta(self) -> dict[str, Any]:
        """What the answer's `meta` says of the parts."""
        judges = {name: judge.stats for name, judge in self._judges.items()}
        judge_meta = {
            name: {
                "template": f"{self._judges[name].part.template.name} {self._judges[name].part.template.version}",
                "verdicts": stats.num_verdicts,
                "unparsable": stats.num_unparsable,
                "position_bias": stats.position_bias,
            }
            for name, stats in judges.items()
        }
        return {"weights": self.recipe.weights, "rules_failed": self.num_failed} | (
            {"judges": judge_meta} if judge_meta else {}
        )

    async def scores(
        self, texts: Sequence[Text], of_model: Sequence[Score] | None, client: Hashable = None
    ) -> list[Score]:
        """Of each text its parts' values (`attributes`, in the recipe's order) and their weighted sum.

        `of_model` are the model part's scores, None where the recipe has no model; `client` is whose turn rules take,
        None: a client of its own. Raises RewardFailed as parts do; cancelled, it ends what runs for it.
        """
        asked, request = [judged(text) for text in texts], object()
        turn = (request if client is None else client, request)
        columns = await _all([self._column(part, asked, of_model, turn) for part in self.recipe.parts])
        weights = [part.weight for part in self.recipe.parts]
        rows = list(zip(*columns, strict=True))
        sums = [sum(weight * value for weight, value in zip(weights, row, strict=True)) for row in rows]
        scores = of_model or [Score(0.0, None, 0, False, -1)] * len(texts)
        return [
            Score(total, None, score.num_tokens, score.truncated, score.position, tuple(row))
            for total, row, score in zip(sums, rows, scores, strict=True)
        ]

    def start(self) -> None:
        """Start a process for rules, so that the first request does not wait for it. Raises OSError where it ends."""
        if self._rules is not None:
            self._rules.start()

    async def close(self) -> None:
        """End what the parts run."""
        if self._rules is not None:
            self._rules.close()
        for judge in self._judges.values():
            await judge.close()

    async def _column(
        self,
        part: ModelPart | RulePart | JudgePart,
        asked: Sequence[Judged],
        of_model: Sequence[Score] | None,
        turn: tuple[Hashable, Hashable],
    ) -> list[float]:
        if isinstance(part, ModelPart):
            assert of_model is not None, "the worker has loaded the model"
            return [(score.reward - part.mean) / part.std for score in of_model]
        if isinstance(part, JudgePart):
            return await self._beating(self._judges[part.name].rewards(asked))
        return await self._rule(part, asked, turn)

    async def _beating(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=_BEAT_S)
                if self._heartbeat is not None:
                    self._heartbeat.beat()
            return await task
        finally:
            task.cancel()

    async def _rule(self, part: RulePart, asked: Sequence[Judged], turn: tuple[Hashable, Hashable]) -> list[float]:
        """A response on which the rule does not return counts 0, and is logged and counted."""
        if part.rule.needs_reference and (lacking := next((o for o in asked if o.reference is None), None)):
            message = f"the rule {part.name!r} compares with a reference; send 'references' (or OpenRLHF's 'labels')"
            raise TextRefused(message, "missing_reference", lacking.where)
        assert self._rules is not None
        number = [one for one in self.recipe.parts if isinstance(one, RulePart)].index(part)
        pairs = [(one.response, one.reference or "") for one in asked]
        verdicts = await self._beating(self._rules.verdicts(*turn, number, pairs))
        for verdict in verdicts:
            if isinstance(verdict, str):
                self.num_failed += 1
                _log.warning("the rule %s counts 0: %s", part.name, verdict)
        return [0.0 if isinstance(verdict, str) else verdict for verdict in verdicts]


async def _all(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all; if one fails, or nobody waits any more, the others are stopped."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def judged(text: Text) -> Judged:
    """What rules and judges read of a text. Raises TextRefused for token ids."""
    prompt, response = answer_of(text)
    return Judged(prompt, response, text.reference, text.where)
