"""Names, shapes and dtypes of what a checkpoint's files hold: safetensors, or what torch.save wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qserve.core.tensors import Tensor
from qserve.errors import BrokenCheckpoint
from qserve.hub.bounded import read_json, shard_names
from qserve.hub.folder import read_header
from qserve.reward.checkpoints.describe import StoredTensor

if TYPE_CHECKING:
    import torch

__all__ = ["PICKLED", "SINGLE_FILES", "load_pickled", "stored_in_file", "stored_in_folder"]

PICKLED = (".bin", ".pt", ".pth")
SINGLE_FILES = (".safetensors", *PICKLED)
# Heads that their trainers keep in a file of their own, beside a model or an adapter.
_HEAD_FILES = (
    "value_head.safetensors",
    "v_head.safetensors",
    "value_head.bin",
    "v_head.bin",
    "reward_head.safetensors",
)
_ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
# A training script's file may hold more than weights; the state dict then stands under one of these keys.
_STATE_DICT_KEYS = ("model_state_dict", "state_dict", "module", "model")
_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


def stored_in_folder(folder: Path, *, adapter: bool = False) -> tuple[StoredTensor, ...]:
    """Every tensor of a checkpoint folder, heads in files of their own included; of an adapter folder the adapter's.

    Raises BrokenCheckpoint for a missing shard or a damaged file.
    """
    files = [folder / name for name in _ADAPTER_FILES] if adapter else list(_weight_files(folder))
    files += [folder / name for name in _HEAD_FILES]
    present = dict.fromkeys(file for file in files if file.is_file())
    return tuple(tensor for file in present for tensor in stored_in_file(file))


def stored_in_file(file: Path) -> tuple[StoredTensor, ...]:
    """Every tensor of one file. Pickles are read without running code (weights_only) and without their data (mmap)."""
    if file.suffix in PICKLED:
        state_dict = load_pickled(file)
        return tuple(
            StoredTensor(name, _DTYPES.get(str(tensor.dtype).removeprefix("torch."), "F32"), tuple(tensor.shape), file)
            for name, tensor in state_dict.items()
        )
    return tuple(_stored(tensor, file) for tensor in read_header(file))


def _stored(tensor: Tensor, file: Path) -> StoredTensor:
    return StoredTensor(tensor.name, tensor.dtype, tensor.shape, file)


def load_pickled(file: Path) -> dict[str, torch.Tensor]:
    """The state dict in a file that torch.save wrote, mapped and not read. Raises BrokenCheckpoint."""
    import torch  # seconds; only pickles need it

    try:
        data: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BrokenCheckpoint(
            f"{file} is not a file of tensors that torch.save wrote ({reason}); code in such files is never run. "
            "Save the state dict alone: torch.save(model.state_dict(), …)"
        ) from error
    while isinstance(data, dict) and (key := _nested_key(data)) is not None:
        data = data[key]
    if not isinstance(data, dict) or not data or not any(isinstance(value, torch.Tensor) for value in data.values()):
        raise BrokenCheckpoint(f"{file} is not a state dict (a dict of tensors); found: {type(data).__name__}")
    return {str(name): value for name, value in data.items() if isinstance(value, torch.Tensor)}


def _nested_key(data: dict[Any, Any]) -> str | None:
    return next((key for key in _STATE_DICT_KEYS if isinstance(data.get(key), dict)), None)


def _weight_files(folder: Path) -> Iterator[Path]:
    for index_name, pattern in (
        ("model.safetensors.index.json", "*.safetensors"),
        ("pytorch_model.bin.index.json", "pytorch_model*.bin"),
    ):
        index, single = folder / index_name, folder / index_name.removesuffix(".index.json")
        files = _indexed(index) if index.is_file() else [single] if single.is_file() else sorted(folder.glob(pattern))
        files = [file for file in files if file.name not in _ADAPTER_FILES + _HEAD_FILES]
        if files:
            yield from files
            return
    yield from sorted(file for suffix in PICKLED for file in folder.glob(f"*{suffix}") if _is_weights(file))


def _is_weights(file: Path) -> bool:
    """Trainers leave their arguments and optimizer states beside the weights."""
    return not any(word in file.name for word in ("training_args", "optimizer", "scheduler", "rng_state", "scaler"))


def _indexed(index: Path) -> list[Path]:
    names = shard_names(read_json(index), str(index))
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise BrokenCheckpoint(
            f"{index.parent} lacks {len(missing)} of {len(names)} shards ({', '.join(missing[:3])}…); copy them again"
        )
    return [index.parent / name for name in names]
