"""A reward model of several labels: TRL's RewardTrainer over single answers, its loss the mean squared error.

TRL trains on pairs alone; models, adapters, metrics and checkpoints are its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel, set_seed
from trl import RewardTrainer
from trl.data_utils import _tokenize
from trl.trainer.reward_trainer import suppress_seqcls_warning
from trl.trainer.utils import create_model_from_path, pad

__all__ = ["ScoreTrainer", "load_classifier"]


def load_classifier(
    folder: str, args: Any, num_labels: int, quantization: Any = None, kind: Any = AutoModelForSequenceClassification
) -> PreTrainedModel:
    """The body with a new head of so many labels, drawn by the run's seed, as TRL loads it for one label."""
    kwargs = dict(args.model_init_kwargs or {})
    if quantization is not None:
        kwargs["quantization_config"] = quantization
    if args.distributed_state.distributed_type in ("MULTI_GPU", "DEEPSPEED"):
        kwargs["device_map"] = None
    set_seed(args.seed)
    with suppress_seqcls_warning():
        return create_model_from_path(folder, kind, num_labels=num_labels, **kwargs)


class ScoreTrainer(RewardTrainer):  # type: ignore[misc]
    """`labels` name the scores of a row, in order; `weights` are what the host gives each in the one reward."""

    _signature_columns: list[str] | None

    def __init__(self, model: PreTrainedModel, labels: Sequence[str], weights: Mapping[str, float], **kwargs: Any):
        config = model.config
        config.num_labels = 1  # TRL takes no model that says more; its head is as wide as it was made
        super().__init__(model=model, **kwargs)
        config.num_labels = len(labels)
        config.id2label = dict(enumerate(labels))
        config.label2id = {name: index for index, name in enumerate(labels)}
        config.problem_type = "regression"
        if weights:
            config.reward_weights = dict(weights)
        self.labels, self.label_config = tuple(labels), config
        self.data_collator = _Padded(self.processing_class.pad_token_id)

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, dataset_name: str) -> Any:
        """Tokens of the whole conversation, as TRL has those of a side; longer ones are left out, as it does."""
        if "input_ids" in dataset.column_names:
            return dataset

        def tokenized(row: dict[str, Any]) -> dict[str, Any]:
            told = {"tools": row.get("tools"), **(row.get("chat_template_kwargs") or {})}
            return {"input_ids": _tokenize(processing_class, row["prompt"] + row["response"], **told)["input_ids"]}

        with args.main_process_first(desc="tokenizing"):
            dataset = dataset.map(tokenized, num_proc=args.dataset_num_proc)
            if args.max_length is None:
                return dataset
            return dataset.filter(lambda row: len(row["input_ids"]) <= args.max_length)

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            self._signature_columns = ["input_ids", "scores"]

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        texts = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        outputs = model(**texts, use_cache=False)
        errors = outputs.logits.float() - inputs["scores"]  # [texts, labels]
        loss = errors.square().mean()
        self._count(inputs["attention_mask"])
        self._measure(errors.detach())
        return (loss, outputs) if return_outputs else loss

    def given(self, model: Any, texts: dict[str, Any]) -> list[list[float]]:
        """Of each text the model's scores, in the order of the labels."""
        values: list[list[float]] = model(**texts, use_cache=False).logits.float().tolist()
        return values

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    def _count(self, mask: torch.Tensor) -> None:
        if self.model.training:
            self._total_train_tokens += self.accelerator.gather_for_metrics(mask.sum()).sum().item() // self._tp_size
        self._metrics[self._mode]["num_tokens"] = [self._total_train_tokens]

    def _measure(self, errors: torch.Tensor) -> None:
        errors, metrics = self.accelerator.gather_for_metrics(errors), self._metrics[self._mode]
        metrics["mae"].append(errors.abs().mean().item())
        for name, of_label in zip(self.labels, errors.square().mean(dim=0).tolist(), strict=True):
            metrics[f"mse/{name}"].append(of_label)


class _Padded:
    """Texts to one length on the right, with their scores in fp32."""

    def __init__(self, pad_token_id: int) -> None:
        self._pad_token_id = pad_token_id

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = [torch.tensor(row["input_ids"]) for row in rows]
        made = {
            "input_ids": pad(ids, padding_value=self._pad_token_id, padding_side="right"),
            "attention_mask": pad([torch.ones_like(one) for one in ids], padding_value=0, padding_side="right"),
        }
        if "scores" in rows[0]:
            scores = [torch.tensor(row["scores"], dtype=torch.float32) for row in rows]
            made["scores"] = pad(
                scores, padding_value=-1, padding_side="right"
            )  # of labelled steps not all have as many
        return made
