"""Merges tensor by tensor, in fp32, and writes the new checkpoint; torch."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from peft.utils.other import get_pattern_key
from safetensors import safe_open

from qserve.derive.card import ModelCard
from qserve.derive.merge.changes import LowRank
from qserve.derive.merge.plan import MergePlan
from qserve.derive.output import carry, made_whole, tokenizer_files
from qserve.derive.tensor_files import write_tensors
from qserve.reward.checkpoints import StoredTensor
from qserve.reward.checkpoints.stored import PICKLED, load_pickled

__all__ = ["merge", "merged_weight", "scaling_of"]


def merge(plan: MergePlan, out: Path, card: ModelCard, progress: Callable[[int, int], None]) -> None:
    """Writes the checkpoint to `out`, whole or not at all. `progress` hears bytes that are written, and of how many."""
    with made_whole(out) as folder, _Reader() as reader:
        total = plan.num_bytes
        for done in write_tensors(folder, _tensors(plan, reader), plan.sizes):
            progress(done, total)
        (folder / "config.json").write_text(json.dumps(plan.config, indent=2, ensure_ascii=False) + "\n")
        carry(plan.base, folder)
        for file in (*tokenizer_files(plan.adapter.folder), *plan.head_files):
            (shutil.copytree if file.is_dir() else shutil.copyfile)(file, folder / file.name)
        card.write(folder)


def scaling_of(config: Mapping[str, Any], module: str, rank: int) -> float:
    """What the product of a module's factors is multiplied by: alpha by the rank, or by its root."""
    patterns = config.get("alpha_pattern") or {}
    alpha = float(patterns.get(get_pattern_key(list(patterns), module), config.get("lora_alpha", 8)))
    return alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank


def merged_weight(
    weight: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    scaling: float,
    magnitude: torch.Tensor | None = None,
    is_embedding: bool = False,
) -> torch.Tensor:
    """`weight` with the scaled product of the factors added, computed in fp32, in its own dtype.

    With DoRA's `magnitude` each row of the sum gets that length.
    """
    product = b.float() @ a.float()
    merged = weight.float() + scaling * (product.T if is_embedding else product)
    if magnitude is not None:
        merged *= (magnitude.float().flatten() / torch.linalg.norm(merged, dim=1)).unsqueeze(1)
    return merged.to(weight.dtype)


class _Reader:
    """Tensors from their files, each opened once; safetensors are mapped."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._files: dict[Path, Any] = {}

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def read(self, stored: StoredTensor) -> torch.Tensor:
        file = self._files.get(stored.file)
        if file is None:
            is_pickled = stored.file.suffix in PICKLED
            opened = (
                load_pickled(stored.file)
                if is_pickled
                else self._open.enter_context(safe_open(stored.file, framework="pt"))
            )
            file = self._files[stored.file] = opened
        tensor: torch.Tensor = file[stored.name] if isinstance(file, dict) else file.get_tensor(stored.name)
        return tensor


def _tensors(plan: MergePlan, reader: _Reader) -> Iterator[tuple[str, torch.Tensor]]:
    """Each of the merged checkpoint, in the plan's order, computed when it is asked for."""
    changes = plan.changes
    for name, stored in plan.tensors.items():
        tensor = reader.read(stored)
        if name in changes.low_rank:
            tensor = _merged(tensor, changes.low_rank[name], plan.adapter.config, reader)
        elif name in changes.replaced:
            tensor = reader.read(changes.replaced[name]).to(tensor.dtype)
        yield name, tensor.clone()  # tied tensors of one file share memory, which safetensors refuses


def _merged(weight: torch.Tensor, parts: LowRank, config: Mapping[str, Any], reader: _Reader) -> torch.Tensor:
    magnitude = None if parts.magnitude is None else reader.read(parts.magnitude)
    a, b = reader.read(parts.a), reader.read(parts.b)
    return merged_weight(weight, a, b, scaling_of(config, parts.module, parts.rank), magnitude, parts.is_embedding)
