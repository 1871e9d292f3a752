"""Rewards from a judge's verdicts: each answer alone, or all pairs of a prompt's answers in both orders."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations

from qserve.reward.failures import RewardFailed, TextRefused
from qserve.reward.judges.client import JudgeClient
from qserve.reward.judges.served import ServedChat
from qserve.reward.judges.verdict import LIMIT_S, MAX_CHARS
from qserve.reward.recipe.config import JudgePart

__all__ = ["Judge", "JudgeStats", "Judged"]

# Pairs of answers grow with their square.
_MOST_ANSWERS = 16
_EXAMPLE_CHARS = 120


@dataclass(frozen=True)
class Judged:
    """One answer. `where` is the field it came from."""

    prompt: str
    response: str
    reference: str | None
    where: str


@dataclass
class JudgeStats:
    """Counts since the start. `num_first` of `num_ordered` decided verdicts prefer the answer that stands first;
    `unparsable_example` ends the last answer in which no verdict was found."""

    num_verdicts: int = 0
    num_unparsable: int = 0
    num_ordered: int = 0
    num_first: float = 0.0
    unparsable_example: str = ""

    @property
    def position_bias(self) -> float | None:
        """How much more often than half the first answer wins, -0.5 to 0.5."""
        return self.num_first / self.num_ordered - 0.5 if self.num_ordered else None


class Judge:
    """One part of a recipe."""

    def __init__(self, part: JudgePart, served: ServedChat | None = None) -> None:
        """`served` is who `url: served` means."""
        self.part = part
        self.stats = JudgeStats()
        self._client = JudgeClient(part, served)
        self._reader = ThreadPoolExecutor(1, f"judge {part.name}")  # starts with its first verdict

    async def rewards(self, asked: Sequence[Judged]) -> list[float]:
        """From 0 to 1 in order.

        Raises TextRefused for what the template can't be filled with, RewardFailed where the judge does not answer, or
        where more verdicts than `max_unparsable` say no number, or all of one answer (without `if_unparsable`).
        """
        if self.part.template.needs_reference and (lacking := next((o for o in asked if o.reference is None), None)):
            message = f"the judge {self.part.name!r} compares with a reference; send 'references' with the answers"
            raise TextRefused(message, "missing_reference", lacking.where)
        return await (self._pairwise(asked) if self.part.template.kind == "pairwise" else self._pointwise(asked))

    async def close(self) -> None:
        """Close the connections."""
        self._reader.shutdown(wait=False, cancel_futures=True)
        await self._client.close()

    async def _pointwise(self, asked: Sequence[Judged]) -> list[float]:
        template = self.part.template
        questions = [
            template.render(
                prompt=one.prompt, response=one.response, reference=one.reference or "", rubric=self.part.rubric
            )
            for one in asked
        ]
        verdicts = await self._verdicts(questions)
        return [self._mean(one, votes) for one, votes in zip(asked, verdicts, strict=True)]

    async def _pairwise(self, asked: Sequence[Judged]) -> list[float]:
        """An answer's reward is its mean result against each other answer to its prompt."""
        pairs = list(self._pairs(asked))
        orders = [order for i, j in pairs for order in ((i, j), (j, i))]
        verdicts = await self._verdicts([self._comparison(asked[i], asked[j]) for i, j in orders])
        results: dict[int, list[float]] = defaultdict(list)
        for (first, second), votes in zip(orders, verdicts, strict=True):
            self.stats.num_ordered += len(votes)
            self.stats.num_first += sum(votes)
            results[first] += votes
            results[second] += [1 - vote for vote in votes]
        return [self._mean(one, results[index]) for index, one in enumerate(asked)]

    def _pairs(self, asked: Sequence[Judged]) -> list[tuple[int, int]]:
        by_prompt: dict[str, list[int]] = defaultdict(list)
        for index, one in enumerate(asked):
            by_prompt[one.prompt].append(index)
        for group in by_prompt.values():
            if not 2 <= len(group) <= _MOST_ANSWERS:
                raise TextRefused(
                    f"the judge {self.part.name!r} compares answers to one prompt, 2 to {_MOST_ANSWERS} of them in a "
                    f"request; this request has {len(group)}",
                    "invalid_value",
                    asked[group[0]].where,
                )
        return [pair for group in by_prompt.values() for pair in combinations(group, 2)]

    def _comparison(self, first: Judged, second: Judged) -> str:
        return self.part.template.render(
            prompt=first.prompt,
            response_a=first.response,
            response_b=second.response,
            reference=first.reference or "",
            rubric=self.part.rubric,
        )

    async def _verdicts(self, questions: Sequence[str]) -> list[list[float]]:
        """The verdicts of each question that can be read; at most `max_unparsable` of all can't."""
        tasks: list[Awaitable[str]] = [
            self._client.answer(question, vote) for question in questions for vote in range(self.part.votes)
        ]
        answers = await asyncio.gather(*tasks)
        # One at a time, so that requests take turns.
        loop, verdict_of = asyncio.get_running_loop(), self.part.template.verdict_of
        read = [await loop.run_in_executor(self._reader, verdict_of, answer) for answer in answers]
        self.stats.num_verdicts += len(read)
        unread = [answer for answer, verdict in zip(answers, read, strict=True) if verdict is None]
        if unread:
            self.stats.num_unparsable += len(unread)
            self.stats.unparsable_example = unread[-1].strip()[-_EXAMPLE_CHARS:]
        if len(unread) > self.part.max_unparsable * len(read):
            raise RewardFailed(
                f"{len(unread)} of {len(read)} answers of the judge {self.part.name!r} have no verdict: its template's "
                f"pattern finds none in the last {MAX_CHARS} characters within {LIMIT_S:g} s (max_unparsable "
                f"{self.part.max_unparsable:g}); one of them ends: {self.stats.unparsable_example!r}",
                "judge_unparsable",
            )
        votes = self.part.votes
        by_question = [read[start : start + votes] for start in range(0, len(read), votes)]
        return [[verdict for verdict in one if verdict is not None] for one in by_question]

    def _mean(self, one: Judged, votes: Sequence[float]) -> float:
        if not votes and self.part.if_unparsable is not None:
            return self.part.if_unparsable
        if not votes:
            message = f"no verdict of the judge {self.part.name!r} on '{one.where}' could be read"
            raise RewardFailed(message, "judge_unparsable", one.where)
        return sum(votes) / len(votes)
