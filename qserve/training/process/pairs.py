"""TRL's reward trainer with label smoothing, which its own loss of pairs does not have, and with exact accuracies."""

from __future__ import annotations

from typing import Any

import torch
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
        chosen, rejected = outputs.logits.squeeze(-1).chunk(2)
        self._measure(chosen.detach().float(), rejected.detach().float())
        if self.label_smoothing:
            loss = loss + self.label_smoothing * (chosen - rejected - inputs.get("margin", 0.0)).mean()
        return (loss, outputs) if return_outputs else loss

    def _measure(self, chosen: torch.Tensor, rejected: torch.Tensor) -> None:
        """Over the pairs of all processes: TRL takes the mean of each process, whose pairs may be fewer at the end."""
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name, values in (("accuracy", (chosen > rejected).float()), ("margin", chosen - rejected)):
            metrics[name][-1] = self.accelerator.gather_for_metrics(values).mean().item()
