"""Where a head is read: from the pooling that training used to token positions of one text."""

from __future__ import annotations

from dataclasses import dataclass

from qserve.reward.checkpoints import RewardCheckpoint
from qserve.reward.failures import TextRefused
from qserve.reward.items import ScoreItem
from qserve.reward.settings import Pooling, RewardSettings

__all__ = ["Pooled", "PoolingRule"]


@dataclass(frozen=True)
class Pooled:
    """Positions of one text at which the head is read; `mean`: over the hidden states of all of them, once."""

    positions: tuple[int, ...]
    mean: bool = False


@dataclass(frozen=True)
class PoolingRule:
    """How texts are read. `step_token_id` is set for process reward models only: there it goes before `pooling`.

    `pad_token_id` is that of config.json: where transformers' classes look for the end of a text.
    """

    pooling: Pooling
    position: int
    eos_token_id: int | None
    step_token_id: int | None
    pad_token_id: int | None = None

    @classmethod
    def of(cls, checkpoint: RewardCheckpoint, settings: RewardSettings, eos_token_id: int | None) -> PoolingRule:
        """The user's pooling, or the one of the checkpoint's format."""
        pooling = settings.pooling or checkpoint.pooling
        return cls(pooling, settings.position, eos_token_id, checkpoint.step_token_id, checkpoint.pad_token_id)

    @property
    def name(self) -> str:
        """For `meta`: 'last', 'position -2', 'step'."""
        if self.step_token_id is not None:
            return "step"
        return f"position {self.position}" if self.pooling == "position" else self.pooling

    def pooled(self, item: ScoreItem) -> Pooled:
        """Where to read `item`; positions that it brings itself go before the rule.

        Raises TextRefused where the text has no such position.
        """
        length = len(item.token_ids)
        if item.positions is not None:
            return Pooled(tuple(self._inside(position, length) for position in item.positions))
        if self.step_token_id is not None:
            return Pooled(self._steps(item))
        if self.pooling == "not-pad":
            return Pooled((self._last_not_pad(item),))
        if self.pooling == "eos":
            return Pooled((self._last_eos(item),))
        if self.pooling == "position":
            return Pooled((self._inside(self.position, length),))
        if self.pooling == "first":
            return Pooled((0,))
        if self.pooling == "mean":
            return Pooled(tuple(range(length)), mean=True)
        return Pooled((length - 1,))

    def _inside(self, position: int, length: int) -> int:
        index = position + length if position < 0 else position
        if not 0 <= index < length:
            raise TextRefused(
                f"position {position} is outside the text, which has {length} tokens", "invalid_value", "positions"
            )
        return index

    def _last_not_pad(self, item: ScoreItem) -> int:
        """The first token of a text of nothing but pads: there transformers' argmax ends.

        Source: transformers 5.19 modeling_layers.py, GenericForSequenceClassification.forward.
        """
        last = len(item.token_ids) - 1
        return next((index for index in range(last, -1, -1) if item.token_ids[index] != self.pad_token_id), 0)

    def _last_eos(self, item: ScoreItem) -> int:
        for index in range(len(item.token_ids) - 1, -1, -1):
            if item.token_ids[index] == self.eos_token_id:
                return index
        raise TextRefused(
            f"the text has no end-of-sequence token (id {self.eos_token_id}), at which this model is read "
            "(--pooling eos); send chat messages, end the text with it, or serve with --pooling last",
            "no_eos",
            "input",
        )

    def _steps(self, item: ScoreItem) -> tuple[int, ...]:
        steps = tuple(index for index, token in enumerate(item.token_ids) if token == self.step_token_id)
        if not steps:
            raise TextRefused(
                f"the text has no step token (id {self.step_token_id}), and this process reward model scores steps: "
                "end each step of the answer with it (<extra_0> where the model is Qwen's)",
                "no_steps",
                "input",
            )
        return steps
