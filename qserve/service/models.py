"""The checkpoints of a service, read once, before anything is planned."""

from __future__ import annotations

from dataclasses import dataclass

from qserve.core.checkpoint import Checkpoint
from qserve.service.chat import checked_chat
from qserve.service.machine import Machine
from qserve.service.request import ServiceRequest
from qserve.service.reward import RewardModel, find_reward_model

__all__ = ["Models"]


@dataclass(frozen=True)
class Models:
    """What --model, and --reward or --embed name; None for what is not asked for."""

    chat: Checkpoint | None
    reward: RewardModel | None

    @classmethod
    def read(cls, request: ServiceRequest, machine: Machine) -> Models:
        """Both, from a folder, the cache or the hub.

        Raises ModelNotFound, BrokenCheckpoint or UnknownArchitecture, and UsageError for a chat model that writes no
        text.
        """
        reward = find_reward_model(request, machine)
        return cls(None if request.model is None else checked_chat(request, machine), reward)
