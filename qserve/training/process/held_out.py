"""Rewards of the held-out pairs by the model as it was trained: what a saved checkpoint is held against."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

__all__ = ["FILE", "write_held_out_rewards"]

FILE = "held_out.jsonl"
_PAIRS_AT_ONCE = 8
_MOST_PAIRS = 2000


def write_held_out_rewards(trainer: Any, folder: Path) -> list[dict[str, Any]]:
    """Rewards and tokens of both sides of up to 2,000 pairs, with the pair's `row`; also to `folder`/FILE."""
    trainer.model.eval()
    made = [one for pairs in _batches(trainer.eval_dataset) for one in _rewarded(trainer, pairs)]
    if trainer.is_world_process_zero():
        (folder / FILE).write_text("".join(json.dumps(one) + "\n" for one in made))
    return made


def _batches(data: Any) -> Iterator[list[dict[str, Any]]]:
    """Of similar length: padding costs."""
    order = sorted(range(min(len(data), _MOST_PAIRS)), key=lambda index: len(data[index]["chosen_ids"]))
    for start in range(0, len(order), _PAIRS_AT_ONCE):
        yield [data[index] for index in order[start : start + _PAIRS_AT_ONCE]]


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
            "row": pair["row"], "chosen": high, "rejected": low,
            "chosen_tokens": len(pair["chosen_ids"]), "rejected_tokens": len(pair["rejected_ids"]),
        }
        for pair, high, low in zip(pairs, chosen, rejected, strict=True)
    ]  # fmt: skip
