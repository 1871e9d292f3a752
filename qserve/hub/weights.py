"""Which files of a folder are its weights, where it holds more than one set: the same for the plan and each engine.

    model.safetensors.index.json   the shards that it names
    model.safetensors              else that one
    *.safetensors                  else all of them that are no adapter, no other format's and no variant

Left to themselves the engines choose differently: transformers takes model.safetensors before an index and puts an
adapter that lies beside on the model that the adapter names; vLLM takes consolidated*.safetensors before all, and
without an index every *.safetensors. They are given a folder of links to what is read (`served_folder.clean_folder`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qserve.errors import BrokenCheckpoint
from qserve.hub.bounded import read_json, shard_names

__all__ = ["WHOLE", "WeightFiles", "weight_files"]

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
WHOLE = (INDEX, SINGLE, *_PICKLED)
"""Any of them is a whole model."""
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
_KINDS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
# What a trainer leaves beside a model.
_NO_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state", "scaler")
_HEADS = ("value_head", "v_head", "reward_head")


@dataclass(frozen=True)
class WeightFiles:
    """`read` are the safetensors files that are the weights; `left_out` is what also looks like weights, by name.

    `has_adapter`: a peft adapter lies beside weights that are whole without it.
    """

    read: tuple[Path, ...]
    left_out: tuple[str, ...] = ()
    has_adapter: bool = False

    @property
    def note(self) -> str | None:
        """For the user, where something is left out."""
        if not self.left_out:
            return None
        names = ", ".join(self.left_out[:4]) + (f" and {len(self.left_out) - 4} more" if len(self.left_out) > 4 else "")
        folder = self.read[0].parent
        read = self.read[0].name if len(self.read) == 1 else f"the {len(self.read)} files of {self.read[0].name}"
        adapter = (
            "; the weights are taken as merged: to serve an adapter that is not merged, put it into another folder"
            if self.has_adapter
            else ""
        )
        return f"{folder} has more than one set of weights: {read} is read, left out are {names}{adapter}"


def weight_files(folder: Path) -> WeightFiles:
    """Those of `folder`. Raises BrokenCheckpoint for a missing shard, and for an adapter without a model."""
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    read = _read(folder, names)
    is_whole = bool(read) or any(name in names for name in _PICKLED)
    has_adapter = _ADAPTER[0] in names
    if has_adapter and not is_whole:
        raise BrokenCheckpoint(
            f"{folder} has a peft adapter ({_ADAPTER[0]}) and no model: give the folder of the model that it was "
            "trained on, or merge it into that one"
        )
    others = [name for name in names if name not in read and _is_weights(name)] if read else []
    return WeightFiles(tuple(folder / name for name in read), (*others, *_below(folder, names, read)), has_adapter)


def _read(folder: Path, names: list[str]) -> list[str]:
    if INDEX in names:
        read = shard_names(read_json(folder / INDEX), str(folder / INDEX))
        missing = [name for name in read if not (folder / name).is_file()]
        if missing:
            raise BrokenCheckpoint(
                f"{folder} lacks {len(missing)} of {len(read)} shards ({', '.join(missing[:3])}…); "
                "download the model again, for example: hf download"
            )
        return read
    if SINGLE in names:
        return [SINGLE]
    found = [name for name in names if name.endswith(".safetensors")]
    own = [name for name in found if not name.startswith(("adapter_model", "consolidated", *_HEADS))]
    shards = [name for name in own if name.startswith("model-")]
    return shards or own


def _is_weights(name: str) -> bool:
    if name in _ADAPTER:
        return True
    is_head = name.startswith(_HEADS)  # a reward model's, beside its body
    return name.endswith(_KINDS) and not is_head and not any(word in name for word in _NO_WEIGHTS)


def _below(folder: Path, names: list[str], read: list[str]) -> list[str]:
    """Meta's own format, which its repositories keep in a folder."""
    held = folder / "original"
    if "original" not in names or not read or not held.is_dir():
        return []
    return [f"original/{file.name}" for file in sorted(held.iterdir()) if file.name.endswith(_KINDS)]
