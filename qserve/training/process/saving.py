"""The trained model into the output folder: written beside and moved file by file, each atomically."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from qserve.training.job import TrainingRun

__all__ = ["save_model", "to_reward_head", "whole_or_none"]

_BESIDE = ".model"
_FULL_BYTES = 1 << 20


@contextmanager
def whole_or_none(folder: Path) -> Iterator[None]:
    """Removes what could not be written whole: on a disk that it filled there is room again to say so.

    Raises OSError for a full disk, of which torch says only that its writer failed.
    """
    try:
        yield
    except BaseException as error:
        is_full = shutil.disk_usage(folder.parent).free < _FULL_BYTES
        shutil.rmtree(folder, ignore_errors=True)
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise


def save_model(trainer: Any, run: TrainingRun) -> None:
    """Weights, config, tokenizer (adapters alone under LoRA) at the top of `run.output`."""
    fresh = run.output / _BESIDE
    if trainer.is_world_process_zero():
        shutil.rmtree(fresh, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()  # none clears what another has begun to write
    with whole_or_none(fresh):
        trainer.save_model(str(fresh))
    if not trainer.is_world_process_zero():
        return
    (fresh / "training_args.bin").unlink(missing_ok=True)
    (fresh / "README.md").unlink(missing_ok=True)
    if run.trainer == "reward" and run.request.tuning in ("lora", "qlora"):
        # An adapter has no place for the labels' names, nor for the pad token before which the class reads a text.
        getattr(trainer, "label_config", trainer.model.config).save_pretrained(fresh)
    if run.trainer == "reward" and run.save_as == "reward-head":
        to_reward_head(fresh)
    for stale in run.output.glob("*.safetensors"):
        if not (fresh / stale.name).exists():
            stale.unlink()
    for file in sorted(fresh.iterdir()):
        file.replace(run.output / file.name)
    fresh.rmdir()


def to_reward_head(folder: Path) -> None:
    """The write-up's layout, in place: a linear `reward_head` over `base_model`."""
    for file in sorted(folder.glob("*.safetensors")):
        tensors = load_file(file)
        named = {_renamed(name): tensor for name, tensor in tensors.items()}
        save_file(named, file, metadata={"format": "pt"})
    index = folder / "model.safetensors.index.json"
    if index.exists():
        data = json.loads(index.read_text())
        data["weight_map"] = {_renamed(name): place for name, place in data["weight_map"].items()}
        index.write_text(json.dumps(data, indent=2) + "\n")
    config = json.loads((folder / "config.json").read_text())
    config.pop("architectures", None)
    # TRL trained it as transformers' class, and the layout names none: where it read the head is to be said.
    config["reward_pooling"] = "not-pad" if config.get("pad_token_id") is not None else "last"
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _renamed(name: str) -> str:
    if name.startswith("score."):
        return name.replace("score.", "reward_head.", 1)
    return name.replace("model.", "base_model.", 1) if name.startswith("model.") else f"base_model.{name}"
