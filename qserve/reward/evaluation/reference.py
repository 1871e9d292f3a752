"""The truth that scores are held against: plain transformers, float32, one text at a time, nothing of the scorer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from qserve.planner.plan import Plan, QuantChoice
from qserve.reward.checkpoints import RewardCheckpoint
from qserve.reward.model.load import LoadedReward, load_reward_model

__all__ = ["PlainScorer", "plain_scorer"]


@dataclass(frozen=True)
class PlainScorer:
    """A model in float32 and the library's own attention; see `plain_scorer`."""

    loaded: LoadedReward

    @property
    def tokenizer(self) -> Any:
        return self.loaded.tokenizer

    def score(self, token_ids: Sequence[int], position: int) -> float:
        """The reward read at `position`, or over the mean of all tokens for -1.

        As `RewardCheckpoint.reward` makes it of the head's values.
        """
        return self.loaded.checkpoint.reward(self.values(token_ids, position))

    @torch.inference_mode()
    def values(self, token_ids: Sequence[int], position: int) -> list[float]:
        """The head's values there, in the order of its labels."""
        ids = torch.tensor([list(token_ids)], device=self.loaded.device)
        hidden = self.loaded.body(input_ids=ids, use_cache=False).last_hidden_state[0].float()
        read = hidden.mean(0) if position < 0 else hidden[position]
        output = self.loaded.head(read[None].to(next(self.loaded.head.parameters()).device))[0]
        values: list[float] = output.tolist()
        return values


def plain_scorer(checkpoint: RewardCheckpoint, plan: Plan) -> PlainScorer:
    """The body is loaded anew in float32: 4 bytes a parameter beside what is loaded already."""
    whole = replace(plan, dtype="float32", quant=QuantChoice("fp32", plan.quant.checkpoint))
    loaded = load_reward_model(checkpoint, whole)
    loaded.body.set_attn_implementation("sdpa")
    return PlainScorer(loaded)
