"""peft adapters: what adapter_config.json says, and where the base model is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qserve.errors import ModelNotFound
from qserve.hub import cache
from qserve.hub.bounded import read_json
from qserve.hub.weights import WHOLE

__all__ = ["AdapterConfig", "base_of", "has_adapter", "read_adapter_config"]

_CONFIG = "adapter_config.json"


@dataclass(frozen=True)
class AdapterConfig:
    """`base_model` as the adapter names it: a folder on the trainer's machine, or a hub id. `task_type`: peft's."""

    peft_type: str
    base_model: str | None
    task_type: str = ""


def has_adapter(folder: Path) -> bool:
    """Whether the folder holds a peft adapter and not a whole model, beside which an adapter's files may lie."""
    return (folder / _CONFIG).is_file() and not any((folder / name).is_file() for name in WHOLE)


def read_adapter_config(folder: Path) -> AdapterConfig:
    """adapter_config.json. Raises BrokenCheckpoint for damaged JSON."""
    data = read_json(folder / _CONFIG)
    base = data.get("base_model_name_or_path")
    task = str(data.get("task_type") or "")
    return AdapterConfig(str(data.get("peft_type", "")), base if isinstance(base, str) else None, task)


def base_of(folder: Path, adapter: AdapterConfig, asked: str | None) -> Path:
    """The folder of the base model: the one asked for, or what the adapter names, here or in the local cache.

    Raises ModelNotFound, naming what the adapter was trained on.
    """
    name = asked or adapter.base_model
    for candidate in _candidates(folder, name):
        if (candidate / "config.json").is_file():
            return candidate
    trained_on = f"it was trained on {adapter.base_model!r}" if adapter.base_model else "it names no base model"
    here = ", which is not on this machine" if adapter.base_model else ""
    looked = f", and --base {asked!r} has no config.json" if asked else here
    raise ModelNotFound(
        f"{folder} is an adapter without its base model: {trained_on}{looked}. "
        "Name the base model's folder: --base FOLDER"
    )


def _candidates(folder: Path, name: str | None) -> list[Path]:
    if not name:
        return []
    snapshot = cache.snapshot(name) if "/" in name and not name.startswith((".", "/")) else None
    return [Path(name).expanduser(), folder / name, *([snapshot] if snapshot else [])]
