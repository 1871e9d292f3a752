"""Names, shapes and dtypes of what a checkpoint's file holds: safetensors, or what torch.save wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from qserve.errors import BrokenCheckpoint
from qserve.hub.bounded import read_header
from qserve.reward.checkpoints.describe import StoredTensor

if TYPE_CHECKING:
    import torch

__all__ = ["PICKLED", "SINGLE_FILES", "load_pickled", "stored_in_file"]

PICKLED = (".bin", ".pt", ".pth")
SINGLE_FILES = (".safetensors", *PICKLED)
# A training script's file may hold more than weights; the state dict then stands under one of these keys.
_STATE_DICT_KEYS = ("model_state_dict", "state_dict", "module", "model")
_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def stored_in_file(file: Path) -> tuple[StoredTensor, ...]:
    """Every tensor of one file. Pickles are read without running code (weights_only) and without their data (mmap)."""
    if file.suffix in PICKLED:
        state_dict = load_pickled(file)
        return tuple(
            StoredTensor(name, _DTYPES.get(str(tensor.dtype).removeprefix("torch."), "F32"), tuple(tensor.shape), file)
            for name, tensor in state_dict.items()
        )
    return tuple(StoredTensor(tensor.name, tensor.dtype, tensor.shape, file) for tensor in read_header(file))


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
