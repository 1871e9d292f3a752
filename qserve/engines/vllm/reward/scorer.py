"""`RewardScorer`'s place over a vLLM server: the same texts, positions, errors and books; the batching is vLLM's."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from qserve.client.answer import Unreachable
from qserve.engines.vllm.reward.server import VllmServer
from qserve.model.failures import NOT_A_NUMBER
from qserve.model.load import load_tokenizer
from qserve.planner.plan import Plan
from qserve.reward.checkpoints import RewardCheckpoint
from qserve.reward.failures import RewardFailed, TextRefused
from qserve.reward.items import Score, ScoreItem
from qserve.reward.scoring.fair_queue import Flow
from qserve.reward.scoring.pooling import PoolingRule
from qserve.reward.scoring.scorer import ScorerStats, check_length, how_scored
from qserve.reward.scoring.template import RewardTemplate
from qserve.reward.settings import RewardSettings

__all__ = ["VllmScorer"]


class VllmScorer:
    """Scores at one place of a text: what asks for several is refused by name.

    vLLM reads the last token that it is sent. No token sees those after it, so a text is sent up to the one to read:
    transformers' class reads before the pad tokens at a text's end.
    """

    vectors = None

    def __init__(self, server: VllmServer, checkpoint: RewardCheckpoint, plan: Plan, settings: RewardSettings) -> None:
        self.stats = ScorerStats()
        self.max_length = min(plan.workload.max_model_len, settings.max_length or plan.workload.max_model_len)
        tokenizer = load_tokenizer(checkpoint.tokenizer)
        self.template = RewardTemplate(tokenizer, checkpoint, settings, self.max_length)
        self.rule = PoolingRule.of(checkpoint, settings, tokenizer.eos_token_id)
        self.meta: dict[str, Any] = {
            **how_scored(checkpoint, self.template, self.rule, self.max_length),
            "step_token": None,
            "dtype": plan.dtype,
            "quant": plan.quant.scheme if plan.quant.in_flight else "none",
            "engine": f"vllm {plan.engine_version}",
        }
        self.tokens_ahead = 2 * plan.workload.max_num_batched_tokens
        self._server = server
        self._num_asking, self._busy_since_s = 0, 0.0

    async def score(self, items: Sequence[ScoreItem], flow: Flow | None = None) -> list[Score]:
        """As `RewardScorer.score`; vLLM serves portions of texts in the order in which they come.

        Raises TextRefused for an item that can't be read at its last token, RewardFailed where the server is gone and
        for a reward that is not a number.
        """
        places = [self._place(item) for item in items]
        if not items:
            return []
        self._begin()
        try:
            status, rewards = await self._server.rewards(
                [list(item.token_ids[: place + 1]) for item, place in zip(items, places, strict=True)]
            )
        except Unreachable as error:
            raise RewardFailed(f"vLLM can't be reached: {error}", "worker_unreachable") from error
        finally:
            self._end()
        if status != 200:
            raise RewardFailed(f"vLLM answered {status} to a request that was checked: {rewards}", "worker_error")
        return [self._score(item, place, value) for item, place, value in zip(items, places, rewards, strict=True)]

    def _place(self, item: ScoreItem) -> int:
        check_length(item, self.max_length)
        *more, place = self.rule.pooled(item).positions
        if more:
            message = "vLLM reads a text at one token only; serve the model without --reward-engine vllm"
            raise TextRefused(message, "position_not_served", "positions")
        return place

    def _score(self, item: ScoreItem, place: int, value: float | None) -> Score:
        if value is None or not math.isfinite(value):
            raise RewardFailed(NOT_A_NUMBER, "not_a_number")
        self.stats.num_items += 1
        self.stats.num_tokens += len(item.token_ids)
        self.stats.num_computed_tokens += len(item.token_ids)
        self.stats.num_truncated += item.truncated
        steps = (value,) if item.positions is not None else None
        return Score(value, steps, len(item.token_ids), item.truncated, place)

    def _begin(self) -> None:
        if not self._num_asking:
            self._busy_since_s = time.perf_counter()
        self._num_asking += 1

    def _end(self) -> None:
        self._num_asking -= 1
        if not self._num_asking:
            self.stats.busy_s += time.perf_counter() - self._busy_since_s
