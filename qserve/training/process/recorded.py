"""What every trainer of ours does besides TRL's: it knows a batch's rows, ends on NaN, and never half-writes a save;
metrics that are means over rows; and pairs without ties.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from operator import mul
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_utils import rotate_checkpoints

from qserve.training.process.saving import whole_or_none

__all__ = ["LossNotFinite", "Recorded", "Weighed", "WithoutTies"]

_ROW = "row"
_BESIDE = ".saving"
_NO_LABEL = -100
"""Of a token that no loss counts."""


class LossNotFinite(ArithmeticError):
    """The loss is not a number: `rows` are the numbers of the batch's rows in train.jsonl."""

    def __init__(self, step: int, loss: float, rows: list[int]) -> None:
        super().__init__(f"the loss of step {step} is {loss}")
        self.step, self.loss, self.rows = step, loss, rows


class Recorded:
    """A mixin before one of TRL's trainers.

    A checkpoint is written into a folder beside and renamed when it is whole: an interrupted or failed save leaves the
    earlier ones as they were.
    """

    args: Any
    state: Any
    accelerator: Any
    _signature_columns: list[str] | None
    _is_saving = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.data_collator = _WithRows(self.data_collator)  # type: ignore[has-type]

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()  # type: ignore[misc]
        if self._signature_columns is not None and _ROW not in self._signature_columns:
            self._signature_columns = [*self._signature_columns, _ROW]

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        rows = _rows_of(inputs)
        loss = super().training_step(model, inputs, *args, **kwargs)  # type: ignore[misc]
        value = float(loss.detach())
        if not math.isfinite(value):
            raise LossNotFinite(self.state.global_step + 1, value, rows)
        return loss

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        _rows_of(inputs)
        return super().prediction_step(model, inputs, *args, **kwargs)  # type: ignore[misc]

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """None: a page about the run is `qserve report`."""

    def _get_output_dir(self, trial: Any) -> str:
        folder: str = super()._get_output_dir(trial)  # type: ignore[misc]
        return os.path.join(folder, _BESIDE) if self._is_saving else folder  # noqa: PTH118 - transformers wants text

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial))
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        self._is_saving = True
        try:
            with whole_or_none(folder / _BESIDE):
                super()._save_checkpoint(model, trial)  # type: ignore[misc]
        finally:
            self._is_saving = False
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()  # each process writes its share of the checkpoint
        if self.args.should_save:
            with whole_or_none(folder / _BESIDE):
                _rename(folder, f"checkpoint-{self.state.global_step}")
            best = self.state.best_global_step
            if best and (folder / f"checkpoint-{best}").exists():
                self.state.best_model_checkpoint = str(folder / f"checkpoint-{best}")
            rotate_checkpoints(
                output_dir=str(folder),
                save_total_limit=limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
                use_mtime=True,
            )
        self.accelerator.wait_for_everyone()


def _rename(folder: Path, name: str) -> None:
    fresh, place = folder / _BESIDE / name, folder / name
    for file in fresh.rglob("*"):
        if file.is_file():
            with file.open("rb") as stream:  # what is renamed must be on the disk before its name says so
                os.fsync(stream.fileno())
    if place.exists():
        shutil.rmtree(place)
    fresh.rename(place)
    shutil.rmtree(folder / _BESIDE, ignore_errors=True)


class _WithRows:
    """A collator that keeps the rows' numbers beside the tensors."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, examples: list[dict[str, Any]]) -> Any:
        rows = [example[_ROW] for example in examples if _ROW in example]
        batch = self.inner([{name: one[name] for name in one if name != _ROW} for one in examples])
        if rows and isinstance(batch, dict):
            batch[_ROW] = torch.tensor(rows)
        return batch


def _rows_of(inputs: Any) -> list[int]:
    """Takes them out of a batch: no model knows them."""
    if isinstance(inputs, dict):
        rows = inputs.pop(_ROW, None)
        return [] if rows is None else [int(row) for row in rows]
    return []


class Weighed:
    """A mixin before one of TRL's trainers, whose logged metrics are then means over rows (of texts over tokens).

    TRL logs the mean of the batches' means, in which the pairs of a short last batch count for more than others.
    """

    model: Any
    accelerator: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._weights: dict[str, list[float]] = {"train": [], "eval": []}
        super().__init__(*args, **kwargs)

    def rows_counted(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """How much each row of a batch counts."""
        if hasattr(super(), "rows_counted"):
            return super().rows_counted(inputs)  # type: ignore[misc, no-any-return]
        if "labels" in inputs:
            tokens: torch.Tensor = (inputs["labels"][..., 1:] != _NO_LABEL).sum(dim=-1)
            return tokens
        return torch.ones(len(inputs["input_ids"]), device=inputs["input_ids"].device)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        weight = self.accelerator.gather_for_metrics(self.rows_counted(inputs)).sum().item()
        result = super().compute_loss(model, inputs, *args, **kwargs)  # type: ignore[misc]
        self._weights["train" if self.model.training else "eval"].append(weight)
        return result

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        mode = "train" if self.model.training else "eval"
        weights, metrics = self._weights[mode], self._metrics[mode]  # type: ignore[attr-defined]
        for name, values in metrics.items():
            if len(values) == len(weights) and sum(weights) > 0:
                metrics[name] = [sum(map(mul, values, weights)) / sum(weights)]
        weights.clear()
        super().log(logs, *args, **kwargs)  # type: ignore[misc]


class WithoutTies:
    """A mixin before one of TRL's trainers of pairs, which leaves out pairs whose sides are the same tokens.

    Texts that differ may be the same once the chat template has cut what it does not write; which of the two has the
    higher reward is then rounding.
    """

    num_ties: int
    """How many were left out, to train on and to evaluate on together."""

    def rows_counted(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """One a pair, both sides of which are rows of the batch."""
        return torch.ones(len(inputs["input_ids"]) // 2, device=inputs["input_ids"].device)

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, dataset_name: str) -> Any:
        made = super()._prepare_dataset(dataset, processing_class, args, dataset_name)  # type: ignore[misc]
        with args.main_process_first(desc="looking for ties"):
            kept = made.filter(lambda row: row["chosen_ids"] != row["rejected_ids"], num_proc=args.dataset_num_proc)
        self.num_ties = getattr(self, "num_ties", 0) + len(made) - len(kept)
        if made and not kept:
            raise ValueError(
                f"all {len(made)} pairs of the {dataset_name} data are ties: their sides are the same tokens"
            )
        return kept
