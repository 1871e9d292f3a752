"""A process reward model: each step of an answer is good or bad, read at the token that ends it.

TRL 1.16 has no trainer for it. This is transformers' token classification with the head of Qwen2.5-Math-PRM (two layers
with a ReLU between them, two labels) under the trainer of scores, which is TRL's for all that is not the loss.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForTokenClassification, PreTrainedModel

from qserve.training.process.scores import ScoreTrainer, load_classifier

__all__ = ["StepTrainer", "load_step_classifier", "with_step_token"]


def with_step_token(tokenizer: Any, token: str) -> Any:
    """The tokenizer, which knows `token` as one."""
    if token not in tokenizer.get_vocab():
        tokenizer.add_special_tokens({"additional_special_tokens": [token]}, replace_extra_special_tokens=False)
    return tokenizer


def load_step_classifier(folder: str, args: Any, num_tokens: int) -> PreTrainedModel:
    """The body, wide enough for `num_tokens`, with a new head drawn by the run's seed."""
    model = load_classifier(folder, args, 2, kind=AutoModelForTokenClassification)
    if num_tokens > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(num_tokens)
    like = model.score.weight
    first = torch.nn.Linear(like.shape[1], like.shape[1], device=like.device, dtype=like.dtype)
    model.score = torch.nn.Sequential(first, torch.nn.ReLU(), model.score)
    return model


class StepTrainer(ScoreTrainer):
    """`scores` of a row are 1 for a good step and 0 for a bad one, in order; a batch fills them up with -1."""

    def __init__(self, model: PreTrainedModel, step_token_id: int, **kwargs: Any):
        self.step_token_id = step_token_id
        super().__init__(model=model, **kwargs)

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, dataset_name: str) -> Any:
        """Without answers whose own text holds the token."""
        dataset = super()._prepare_dataset(dataset, processing_class, args, dataset_name)
        return dataset.filter(lambda row: row["input_ids"].count(self.step_token_id) == len(row["scores"]))

    def given(self, model: Any, texts: dict[str, Any]) -> list[list[float]]:
        """Of each text each step's probability of being good."""
        shares = self._at_steps(model, texts)[1].softmax(dim=-1)[:, 1].tolist()
        counts = (texts["input_ids"] == self.step_token_id).sum(dim=1).tolist()
        values = iter(shares)
        return [[next(values) for _ in range(count)] for count in counts]

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs, logits = self._at_steps(model, inputs)
        truth = inputs["scores"][inputs["scores"] >= 0].long()
        loss = cross_entropy(logits, truth)
        self._count(inputs["attention_mask"])
        right = (logits.detach().argmax(dim=-1) == truth).float().mean()
        self._metrics[self._mode]["accuracy"].append(self.accelerator.gather_for_metrics(right).mean().item())
        return (loss, outputs) if return_outputs else loss

    def rows_counted(self, inputs: Any) -> torch.Tensor:
        """Steps of each answer."""
        steps: torch.Tensor = (inputs["scores"] >= 0).sum(dim=-1)
        return steps

    def _at_steps(self, model: Any, inputs: dict[str, Any]) -> tuple[Any, torch.Tensor]:
        """(the model's outputs, fp32 logits [steps of all texts, 2], text by text)."""
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False)
        return outputs, outputs.logits[inputs["input_ids"] == self.step_token_id].float()
