"""Tensors written as safetensors of a few GiB each, with an index where there are several; torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from qserve.derive.output import SHARD_BYTES
from qserve.hub.weight_names import INDEX

__all__ = ["write_tensors"]


def write_tensors(
    folder: Path, tensors: Iterable[tuple[str, torch.Tensor]], sizes: Mapping[str, int], limit: int = SHARD_BYTES
) -> Iterator[int]:
    """Writes them, of which `sizes` has the bytes of each by name, in that order; yields the bytes written so far.

    A file's tensors are taken from the iterator when it is its turn.
    """
    groups = _groups(sizes, limit)
    names = [
        "model.safetensors" if len(groups) == 1 else f"model-{number:05}-of-{len(groups):05}.safetensors"
        for number in range(1, len(groups) + 1)
    ]
    waiting, done = iter(tensors), 0
    for name, group in zip(names, groups, strict=True):
        held = dict(next(waiting) for _ in group)
        save_file({key: tensor.contiguous() for key, tensor in held.items()}, folder / name, {"format": "pt"})
        done += sum(sizes[key] for key in group)
        del held
        yield done
    if len(groups) > 1:
        places = {key: name for name, group in zip(names, groups, strict=True) for key in group}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _groups(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    held = 0
    for name, num_bytes in sizes.items():
        if groups[-1] and held + num_bytes > limit:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += num_bytes
    return groups
