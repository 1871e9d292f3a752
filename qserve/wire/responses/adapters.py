"""LoRA adapters that were loaded at run time."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

__all__ = ["Adapter", "AdapterList", "UnloadedAdapter"]


class Adapter(BaseModel):
    """`num_loads` counts how often this name was loaded, `load_ms` is what the last time took."""

    id: str
    object: Literal["adapter"]
    model: str
    path: str
    rank: int
    targets: list[str]
    loaded_unix_s: int
    num_loads: int
    load_ms: float


class AdapterRoom(BaseModel):
    """What a model's plan has room for. `at_start`: names given with --lora-modules, which take room as well."""

    model: str
    max_loras: int
    max_lora_rank: int
    loaded: list[str]
    at_start: list[str]


class AdapterList(BaseModel):
    object: Literal["list"]
    data: list[Adapter]
    room: list[AdapterRoom]


class UnloadedAdapter(BaseModel):
    id: str
    object: Literal["adapter"]
    deleted: Literal[True]
