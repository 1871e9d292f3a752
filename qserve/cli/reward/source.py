"""Rewards for a command: from a model in this process, or from a server. Neither is imported before it is used."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from qserve.cli.options.planning import hardware_of
from qserve.cli.reward.options import settings_of
from qserve.errors import QserveError, UsageError
from qserve.planner import PlanRequest
from qserve.reward.evaluation.records import Content

if TYPE_CHECKING:
    from qserve.reward.scoring.scorer import RewardScorer

__all__ = ["Answered", "Rewards", "local_rewards", "opened_scorer", "served_rewards", "with_progress"]

Answered = dict[str, Any]
"""`reward`, `num_tokens`, `truncated` and where there are some `steps`; or `error` with a sentence."""

Rewards = Callable[[Sequence[Content]], list[Answered]]

_AT_ONCE = 256
_SERVED_AT_ONCE = 32


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
    from qserve.reward.scoring.scorer import Score, ScoreItem
    from qserve.wire.errors import ApiError

    def items(contents: Sequence[Content]) -> Iterator[ScoreItem | str]:
        for content in contents:
            try:
                encoded = scorer.template.encode(content)
                item = ScoreItem(encoded.token_ids, truncated=encoded.truncated)
                scorer.rule.pooled(item)
                yield item
            except ApiError as error:
                yield error.message

    def rewards(contents: Sequence[Content]) -> list[Answered]:
        asked = list(items(contents))
        outcomes = iter(scorer.score_now([item for item in asked if not isinstance(item, str)]))
        answers: list[Answered] = []
        for item in asked:
            outcome = item if isinstance(item, str) else next(outcomes)
            answers.append(outcome_json(outcome) if isinstance(outcome, Score) else {"error": str(outcome)})
        return answers

    def outcome_json(score: Score) -> Answered:
        steps = {} if score.steps is None else {"steps": list(score.steps)}
        return {"reward": score.reward, **steps, "num_tokens": score.num_tokens, "truncated": score.truncated}

    return rewards


def served_rewards(url: str, model: str | None, api_key: str | None) -> Rewards:
    """Of a server that answers POST /v1/reward. Raises UsageError when it does not."""

    def rewards(contents: Sequence[Content]) -> list[Answered]:
        return asyncio.run(_ask(url, model, api_key or os.environ.get("QSERVE_API_KEY"), contents))

    return rewards


async def _ask(url: str, model: str | None, api_key: str | None, contents: Sequence[Content]) -> list[Answered]:
    import aiohttp

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    answers: list[Answered] = [{"error": "not asked"}] * len(contents)
    # A request holds texts or conversations, not both.
    kinds = {"texts": [], "conversations": []}  # type: dict[str, list[int]]
    for index, content in enumerate(contents):
        kinds["texts" if isinstance(content, str) else "conversations"].append(index)
    parts = [
        (kind, indices[start : start + _SERVED_AT_ONCE])
        for kind, indices in kinds.items()
        for start in range(0, len(indices), _SERVED_AT_ONCE)
    ]
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(3600)) as session:

            async def ask(kind: str, indices: list[int]) -> None:
                body = {kind: [contents[index] for index in indices]} | ({"model": model} if model else {})
                async with session.post(f"{url.rstrip('/')}/v1/reward", json=body) as answer:
                    data = await answer.json()
                    if answer.status != 200 and len(indices) > 1:  # one bad text must not cost the others theirs
                        await asyncio.gather(*(ask(kind, [index]) for index in indices))
                        return
                    rows = data["data"] if answer.status == 200 else [{"error": data["error"]["message"]}]
                for index, row in zip(indices, rows, strict=True):
                    answers[index] = row

            await asyncio.gather(*(ask(kind, indices) for kind, indices in parts))
    except (aiohttp.ClientError, KeyError, ValueError) as error:
        raise UsageError(
            f"{url} did not answer POST /v1/reward as qserve does ({error}); start one: qserve up --reward demo, and "
            "name it: --url http://127.0.0.1:8000"
        ) from error
    return answers


def with_progress(rewards: Rewards, contents: Sequence[Content], what: str) -> list[Answered]:
    """All answers; a terminal is shown how far it is."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    starts = range(0, len(contents), _AT_ONCE)
    shown = track(starts, description=what, console=console, disable=not console.is_terminal, transient=True)
    answers = [answer for start in shown for answer in rewards(contents[start : start + _AT_ONCE])]
    if len(answers) != len(contents):
        raise QserveError(f"{len(answers)} answers came for {len(contents)} texts")
    return answers
