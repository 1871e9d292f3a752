"""Pairs whose sides are the same tokens: no loss learns from them, and no accuracy counts them."""

from __future__ import annotations

from typing import Any

__all__ = ["WithoutTies"]


class WithoutTies:
    """A mixin before one of TRL's trainers of pairs. Texts that differ may be the same once the chat template has cut
    what it does not write; which of the two has the higher reward is then rounding.
    """

    num_ties: int
    """How many were left out, to train on and to evaluate on together."""

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
