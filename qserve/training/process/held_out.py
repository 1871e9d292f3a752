"""Rewards of the held-out rows by the model as it was trained: what a saved checkpoint is held against."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch

from qserve.training.job import TrainingRun

__all__ = ["FILE", "pairs_right", "report_held_out"]

FILE = "held_out.jsonl"
_ROWS_AT_ONCE = 8
_MOST_ROWS = 2000


def report_held_out(trainer: Any, run: TrainingRun) -> dict[str, int]:
    """Writes the rewards of up to 2,000 held-out rows to FILE in the run's folder; how many there are, and are right.

    Of a pair rewards and tokens of both sides, of scores those of the row and what the model gives; each with `row`.
    All pairs are counted, by the last evaluation.
    """
    trainer.model.eval()
    if run.data.labels:
        made = [one for rows in _batches(trainer.eval_dataset, "input_ids") for one in _scored(trainer, rows)]
    else:
        made = [one for pairs in _batches(trainer.eval_dataset, "chosen_ids") for one in _rewarded(trainer, pairs)]
    if trainer.is_world_process_zero():
        (run.folder / FILE).write_text("".join(json.dumps(one) + "\n" for one in made))
    if run.data.labels:
        return {"texts": len(made)}
    return pairs_right(trainer, "eval_accuracy")


def pairs_right(trainer: Any, metric: str) -> dict[str, int]:
    """Of the last evaluation: how many pairs there are, and are right."""
    share = next(one[metric] for one in reversed(trainer.state.log_history) if metric in one)
    return {"pairs": len(trainer.eval_dataset), "right": round(share * len(trainer.eval_dataset))}


def _batches(data: Any, ids: str) -> Iterator[list[dict[str, Any]]]:
    """Of similar length: padding costs."""
    order = sorted(range(min(len(data), _MOST_ROWS)), key=lambda index: len(data[index][ids]))
    for start in range(0, len(order), _ROWS_AT_ONCE):
        yield [data[index] for index in order[start : start + _ROWS_AT_ONCE]]


@torch.no_grad()
def _scored(trainer: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    batch = trainer.data_collator([{"input_ids": row["input_ids"]} for row in rows])
    batch = trainer._prepare_inputs(dict(batch))
    with trainer.compute_loss_context_manager():
        values = trainer.given(trainer.model, batch)
    return [
        {"row": row["row"], "scores": row["scores"], "given": given, "tokens": len(row["input_ids"])}
        for row, given in zip(rows, values, strict=True)
    ]


@torch.no_grad()  # ZeRO and FSDP gather weights into tensors that they use again, which inference mode forbids
def _rewarded(trainer: Any, pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    batch = trainer.data_collator(
        [{name: pair[name] for name in ("chosen_ids", "rejected_ids", "row")} for pair in pairs]
    )
    batch.pop("row", None)
    batch = trainer._prepare_inputs(batch)
    with trainer.compute_loss_context_manager():
        logits = trainer.model(**batch, use_cache=False).logits.squeeze(-1).float()
    chosen, rejected = (half.tolist() for half in logits.chunk(2))
    return [
        {
            "row": pair["row"],
            "chosen": high,
            "rejected": low,
            "chosen_tokens": len(pair["chosen_ids"]),
            "rejected_tokens": len(pair["rejected_ids"]),
        }
        for pair, high, low in zip(pairs, chosen, rejected, strict=True)
    ]
