"""TRL's reward trainer with label smoothing, which its own loss of pairs does not have."""

from __future__ import annotations

from typing import Any

from trl import RewardTrainer

__all__ = ["PairTrainer"]


class PairTrainer(RewardTrainer):  # type: ignore[misc]
    """A share `label_smoothing` of the pairs is taken for turned around: for a difference d of the rewards (less its
    margin) the loss is (1 - share) · -logσ(d) + share · -logσ(-d), which is TRL's own and share · d.
    """

    def __init__(self, *args: Any, label_smoothing: float = 0.0, **kwargs: Any) -> None:
        self.label_smoothing = label_smoothing
        super().__init__(*args, **kwargs)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if self.label_smoothing:
            chosen, rejected = outputs.logits.squeeze(-1).chunk(2)
            loss = loss + self.label_smoothing * (chosen - rejected - inputs.get("margin", 0.0)).mean()
        return (loss, outputs) if return_outputs else loss
