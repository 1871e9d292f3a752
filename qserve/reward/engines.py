"""The interface of an engine for reward models: what stands against it, and its scorer."""

from __future__ import annotations

from typing import Protocol

from qserve.core.hardware import Hardware
from qserve.detect.packages import Packages
from qserve.errors import UsageError
from qserve.planner.engine import engine_named, load_attribute, reward_engine_names
from qserve.planner.request import PlanRequest
from qserve.reward.checkpoints import RewardCheckpoint
from qserve.reward.judges.served import ServedChat
from qserve.reward.settings import RewardSettings
from qserve.worker.process import WorkerSpec

__all__ = ["RewardEngine", "reward_engine"]


class RewardEngine(Protocol):
    """What an engine's `reward` names in the registry (`qserve.planner.engine.Engine`)."""

    def why_not_scored(self, reward: RewardCheckpoint, settings: RewardSettings) -> str | None:
        """Why the engine does not score with `reward` as it was trained, on any machine; None where it does."""
        ...

    def why_not(
        self,
        reward: RewardCheckpoint,
        settings: RewardSettings,
        hardware: Hardware,
        request: PlanRequest,
        packages: Packages,
    ) -> str | None:
        """Why the engine can't serve a model that it scores with on this machine, with what would work; None where it
        can.
        """
        ...

    async def serve(self, spec: WorkerSpec, settings: RewardSettings, served: ServedChat | None) -> None:
        """Be the reward worker until this process is ended. Raises what `worker_process.run` understands.

        `served` is the chat model of the same service, which a judge among the rewards may be.
        """


def reward_engine(name: str) -> RewardEngine:
    """How a registered engine scores. Raises UsageError for one that does not."""
    dotted = engine_named(name).reward
    if not dotted:
        known = ", ".join(reward_engine_names())
        raise UsageError(f"--reward-engine {name} does not serve reward models; these engines do: {known}")
    engine: RewardEngine = load_attribute(dotted)
    return engine
