"""`Hosted`: one model to serve, with its plan and the resources of its worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from qserve.core.hardware import Device
from qserve.errors import UsageError
from qserve.planner.plan import Plan
from qserve.planner.speed.estimate import Replica
from qserve.reward.settings import RewardSettings

__all__ = ["Hosted"]


@dataclass(frozen=True)
class Hosted:
    """A model to serve.

    Attributes:
        role: what it is for; names its worker, with the index of the replica where there are several.
        folder: the checkpoint on disk; with `load_format` dummy its config.json is enough.
        names: what requests may call it; the first is canonical.
        plan: how it runs.
        engine_args: the user's own flags of the engine, as one string (vLLM).
        load_format: "dummy" runs on random weights.
        verify_quant: measure what quantizing while loading costs.
        packed_cache_bytes: what packed weights of all models may take on disk; 0: none are kept.
        reward: how a reward model is asked.
        cards: what the worker may see of this machine's; None: all.
        speed: its steps as planned; None where nothing is planned of its speed.
        tokenizer: folder with the tokenizer's files, where that is not `folder`.
        index: of this replica among the `num_replicas` of its role.
        num_nodes: of a cluster, that one replica takes whole; 1: a part of one, or one.
        num_cores: that it may compute on; None: all of the machine.
    """

    role: Literal["chat", "reward"]
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

    @property
    def name(self) -> str:
        """Of its worker: `chat`, or `chat-1` where there are several."""
        return self.role if self.num_replicas == 1 else f"{self.role}-{self.index}"

    def __post_init__(self) -> None:
        for name in self.names:
            if not name.strip() or not name.isprintable():
                flag = "--served-model-name" if self.role == "chat" else "--served-reward-name"
                raise UsageError(
                    f"{name!r} is no name that can stand in requests and on a terminal: it must be printable, and more "
                    f"than spaces. Choose one with {flag}"
                )
