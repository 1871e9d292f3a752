"""What rewards rollouts, as functions of TRL's signature: a reward host over HTTP, a checkpoint, or a recipe.

All three go through qserve's own reward formats, so that a trainer sees the reward that a server would give.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qserve.client.answer import Answer, Unreachable, is_error
from qserve.client.http import ask
from qserve.errors import QserveError
from qserve.training.job import RewardSource

__all__ = ["reward_functions"]

RewardFunction = Callable[..., list[float]]
_TIMEOUT_S = 600.0


def reward_functions(sources: Sequence[RewardSource]) -> list[RewardFunction]:
    """One for each source, in order; TRL weighs them by `reward_weights`."""
    made = [_of_answers(_function(source.target)) for source in sources]
    names: list[str] = []
    for function, source in zip(made, sources, strict=True):
        names.append(_name(source.target, names))
        function.__name__ = names[-1]
    return made


def _name(target: str, used: Sequence[str]) -> str:
    """TRL logs each reward under its function's name, and two of one name as one.

    A server is named by host and port, a checkpoint by its folder, a recipe by its file without the ending.
    """
    last = target.rstrip("/").rsplit("/", 1)[-1]
    plain = re.sub(r"\.ya?ml$", "", last) or "reward"
    return next(
        name for name in itertools.chain([plain], (f"{plain} ({n})" for n in itertools.count(2))) if name not in used
    )


def _of_answers(score: RewardFunction) -> RewardFunction:
    """An answer without a token has no reward anywhere: it gets the lowest of its batch, so that nobody learns it."""

    def reward(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
        answered = [index for index, one in enumerate(completions) if _text_of(one)]
        lists = {
            name: value for name, value in columns.items() if isinstance(value, list) and len(value) == len(prompts)
        }
        rewards = (
            score(
                [prompts[index] for index in answered],
                [completions[index] for index in answered],
                **{name: [value[index] for index in answered] for name, value in lists.items()},
            )
            if answered
            else []
        )
        lowest = min(rewards, default=0.0)
        found = dict(zip(answered, rewards, strict=True))
        return [found.get(index, lowest) for index in range(len(prompts))]

    return reward


def _text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else "".join(turn.get("content") or "" for turn in completion)


def _function(target: str) -> RewardFunction:
    if target.startswith(("http://", "https://")):
        return _served(target)
    return _in_process(target)


def _served(url: str) -> RewardFunction:
    import os

    key = os.environ.get("QSERVE_API_KEY")
    takes_references = True

    def answer_to(body: dict[str, Any]) -> Answer:
        try:
            return ask("POST", f"{url.rstrip('/')}/v1/reward", api_key=key, body=body, timeout_s=_TIMEOUT_S)
        except Unreachable as error:
            raise QserveError(
                f"the reward host at {url} does not answer ({error}); resume the run once it does"
            ) from None

    def reward(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
        nonlocal takes_references
        conversations = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]
        references = columns.get("references") if takes_references else None
        sent = {"references": references} if references and any(references) else {}
        answer = answer_to({"conversations": conversations, **sent})
        if sent and answer.status == 400 and _refused_field(answer) == "references":
            takes_references = False  # a model alone, which compares with nothing
            answer = answer_to({"conversations": conversations})
        if is_error(answer.status):
            raise QserveError(f"the reward host at {url} answered {answer.status}: {answer.text[:300]}")
        return [float(row["reward"]) for row in answer.json()["data"]]

    return reward


def _refused_field(answer: Answer) -> str | None:
    """The request's field that an error in OpenAI's shape is about."""
    try:
        field: str | None = answer.json()["error"]["param"]
    except (ValueError, KeyError, TypeError):
        return None
    return field


def _in_process(target: str) -> RewardFunction:
    """A checkpoint of any format that the reward host knows, or a recipe's rules; loaded at the first call."""
    from qserve.reward.recipe import is_recipe

    if is_recipe(target):
        return _of_recipe(Path(target))
    state: dict[str, Any] = {}

    def reward(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
        if not state:
            from qserve.detect import detect
            from qserve.planner import PlanRequest
            from qserve.reward.open import open_scorer
            from qserve.reward.settings import RewardSettings

            state["scorer"] = open_scorer(target, RewardSettings(), detect(), PlanRequest())
        from qserve.reward.items import ScoreItem

        scorer = state["scorer"]
        encoded = [
            scorer.template.encode([*prompt, *completion])
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        outcomes = scorer.score_now([ScoreItem(one.token_ids, truncated=one.truncated) for one in encoded])
        failed = next((one for one in outcomes if isinstance(one, Exception)), None)
        if failed is not None:
            raise failed
        return [float(one.reward) for one in outcomes]

    return reward


def _of_recipe(file: Path) -> RewardFunction:
    """Rules alone: what holds a model or a judge is served, and asked by its URL."""
    import asyncio
    import atexit

    from qserve.reward.protocols.job import Text
    from qserve.reward.recipe import read_recipe
    from qserve.reward.recipe.parts import RecipeScorer

    parts = RecipeScorer(read_recipe(file))
    runner = asyncio.Runner()
    atexit.register(runner.close)
    parts.start()

    def reward(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
        references = columns.get("references") or [""] * len(prompts)
        texts = [
            Text((*prompt, *completion), "text", reference=reference or None)
            for prompt, completion, reference in zip(prompts, completions, references, strict=True)
        ]
        return [float(score.reward) for score in runner.run(parts.scores(texts, None))]

    return reward
