"""What earlier runs on this machine measured of their process, for the next plan."""

from __future__ import annotations

from pathlib import Path

from qserve.planner.training.training_constants import AFTER_LOADING_ON_CPU_BYTES
from qserve.runs import RunStore, StoreUnusable

__all__ = ["calibrated_runtime"]

_TRAINERS = {"reward": "reward", "dpo": "dpo", "grpo": "grpo"}
# Pages that other processes map too count by their share, so that a run beside others measures less.
_RUNS = 3


def calibrated_runtime(state_folder: Path, method: str) -> int | None:
    """Bytes of interpreter and libraries before a model, as the last runs of `method`'s trainer on this CPU had them at
    most, and what comes after; None where there was no such run.
    """
    try:
        store = RunStore.open_existing(state_folder)
        documents = [one.document for one in store.trainings()] if store else []
    except StoreUnusable:
        return None
    trainer = _TRAINERS.get(method, "sft")
    known = [
        int(document["measured"]["baseline_bytes"])
        for document in documents
        if document["job"]["device"] == "cpu"
        and _TRAINERS.get(document["job"]["request"]["method"], "sft") == trainer
        and document["measured"].get("baseline_bytes")
    ]
    return max(known[-_RUNS:]) + AFTER_LOADING_ON_CPU_BYTES if known else None
