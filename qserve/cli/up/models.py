"""The models that `qserve up` is to serve, as named on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qserve.planner.engine import SCORER
from qserve.planner.replicas import NumReplicas
from qserve.reward.settings import RewardSettings

__all__ = ["ModelsToServe"]


@dataclass(frozen=True)
class ModelsToServe:
    """The models and their options. `configs`: a folder for config files of models that are not on disk.

    `replicas` None: one, or as many as the layout for a load has.
    """

    model: str | None
    model_names: tuple[str, ...]
    reward: str | None
    reward_names: tuple[str, ...]
    settings: RewardSettings
    load_format: Literal["auto", "dummy"]
    configs: Path
    reward_engine: str = SCORER
    replicas: NumReplicas | None = None
    reward_replicas: int = 1
