"""`ModelDeployment`: one model to serve, with its plan and the resources of its worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from qserve.core.hardware import Device
from qserve.errors import UsageError
from qserve.planner.plan import Plan
from qserve.planner.residency.footprint import Footprint
from qserve.planner.speed.estimate import Replica
from qserve.reward.settings import RewardSettings
from qserve.service.residents import Keeping

__all__ = ["ModelDeployment", "OnDemand"]


@dataclass(frozen=True)
class OnDemand:
    """A model that takes turns in memory: what it takes there, and how long it stays."""

    footprint: Footprint
    keeping: Keeping


@dataclass(frozen=True)
class ModelDeployment:
    """A model to serve.

    Attributes:
        role: `chat`, `reward` or `embed`.
        folder: the checkpoint on disk; with `load_format` dummy its config.json is enough.
        names: its names in requests; the first is canonical.
        plan: how it runs.
        engine_args: the user's own flags of the engine, as one string (vLLM).
        load_format: "dummy" runs on random weights.
        verify_quant: measure what quantizing while loading costs.
        packed_cache_bytes: bound of the cache of packed weights of all models; 0: off.
        reward: settings of a reward or embedding model.
        cards: those that the worker may use; None: all.
        speed: its planned steps; None if its speed is not planned.
        tokenizer: folder with the tokenizer's files, where that is not `folder`.
        index: of this replica among the `num_replicas` of its group.
        on_demand: of a model that comes into memory when it is asked for; None: it is always there.
        group: of the replicas of this model; names its workers, with an index if there are several. "": as its role.
        num_nodes: nodes of a cluster over which one replica spreads; 1: (part of) one node.
        num_cores: cores that it may use; None: all.
    """

    role: Literal["chat", "reward", "embed"]
    folder: Path
    names: tuple[str, ...]
    plan: Plan
    engine_args: str = ""
    load_format: Literal["auto", "dummy"] = "auto"
    verify_quant: bool = False
    packed_cache_bytes: int = 0
    reward: RewardSettings = field(default_factory=RewardSettings)
    cards: tuple[Device, ...] | None = None
    tokenizer: Path | None = None
    speed: Replica | None = None
    index: int = 0
    num_replicas: int = 1
    num_cores: int | None = None
    num_nodes: int = 1
    group: str = ""
    on_demand: OnDemand | None = None

    @property
    def name(self) -> str:
        """The worker's name: `chat`, or `chat-1` if there are several."""
        return self.group if self.num_replicas == 1 else f"{self.group}-{self.index}"

    def __post_init__(self) -> None:
        object.__setattr__(self, "group", self.group or self.role)
        for name in self.names:
            if not name.strip() or not name.isprintable():
                flag = "--served-model-name" if self.role == "chat" else f"--served-{self.role}-name"
                raise UsageError(
                    f"{name!r} can't be a name in requests: it must be printable and not only "
                    f"spaces. Choose one with {flag}"
                )
