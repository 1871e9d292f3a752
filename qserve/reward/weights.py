"""The body's tensors under the body's own names: from any layout of files, with an adapter merged in."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.utils import logging as transformers_logging

from qserve.errors import BrokenCheckpoint, MissingExtra
from qserve.hub.served_folder import clean_folder
from qserve.reward.checkpoints import RewardCheckpoint, StoredTensor
from qserve.reward.checkpoints.stored import PICKLED, load_pickled

__all__ = ["body_tensors", "read_tensors"]


def body_tensors(checkpoint: RewardCheckpoint, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Name to tensor for `AutoModel`. Tensors are mapped from their files and read when they are used.

    With an adapter, the merged body in `dtype`: peft adds the product of its factors, computed in their own precision.
    """
    if checkpoint.adapter is not None:
        return _merged(checkpoint, checkpoint.adapter, dtype)
    found = read_tensors(checkpoint.body)
    return {name.removeprefix(checkpoint.body_prefix): tensor for name, tensor in found.items()}


def read_tensors(tensors: Iterable[StoredTensor]) -> dict[str, torch.Tensor]:
    """Tensors by their stored names, mapped from their files; each file is opened once."""
    by_file: dict[Path, list[str]] = {}
    for tensor in tensors:
        by_file.setdefault(tensor.file, []).append(tensor.name)
    found: dict[str, torch.Tensor] = {}
    for path, names in by_file.items():
        if path.suffix in PICKLED:
            stored = load_pickled(path)
            found.update({name: stored[name] for name in names})
        else:
            with safe_open(path, framework="pt") as file:
                found.update({name: file.get_tensor(name) for name in names})
    return found


def _merged(checkpoint: RewardCheckpoint, adapter: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    if importlib.util.find_spec("peft") is None:
        raise MissingExtra("peft", f"the adapter {adapter}")
    from peft import PeftConfig, PeftModel  # an extra

    task = str(PeftConfig.from_pretrained(str(adapter)).task_type)
    of_classes = "CLS" in task
    loader: Any = AutoModelForSequenceClassification if of_classes else AutoModelForCausalLM
    labels = {"num_labels": checkpoint.head.num_labels} if of_classes else {}
    # The base has no head yet, which transformers warns of; the adapter brings it, or `recognise` has refused.
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        folder = clean_folder(checkpoint.base or checkpoint.path)
        base = loader.from_pretrained(folder, dtype=dtype, local_files_only=True, **labels)
        merged: Any = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()
    except (RuntimeError, KeyError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BrokenCheckpoint(
            f"the adapter {adapter} does not fit the base {checkpoint.base} ({reason}); "
            "is it the model that the adapter was trained on?"
        ) from error
    finally:
        transformers_logging.set_verbosity(verbosity)
    body = getattr(merged, merged.base_model_prefix)
    return dict(body.state_dict())
