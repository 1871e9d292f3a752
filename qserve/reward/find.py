"""From what the user wrote behind --reward to the checkpoint that it names: files and headers only, no torch."""

from __future__ import annotations

from pathlib import Path

from qserve.core.checkpoint import Checkpoint
from qserve.errors import BrokenCheckpoint, ModelNotFound
from qserve.hub import cache, resolve
from qserve.reward.checkpoints import RewardCheckpoint, recognise
from qserve.reward.settings import RewardSettings

__all__ = ["find_reward", "planned_reward"]


def find_reward(reward: str, settings: RewardSettings) -> RewardCheckpoint:
    """The reward model that `reward` names: a folder, a single file, a hub id in the local cache, or `demo`.

    Raises ModelNotFound or BrokenCheckpoint with what was found.
    """
    if reward == "demo":
        from qserve.demo import reward_model_path  # pulls in the demo package only for the demo

        return recognise(reward_model_path(), settings, "demo")
    path = Path(reward).expanduser()
    if not path.exists() and (snapshot := cache.snapshot(reward)) is not None:
        path = snapshot
    if not path.exists():
        raise ModelNotFound(
            f"{reward!r} is no folder, no file and not in the local Hugging Face cache; --reward takes a folder, a "
            "single file with --base, a hub id whose files are there (hf download), or demo"
        )
    return recognise(path, settings, reward)


def planned_reward(reward: str) -> Checkpoint:
    """What a plan counts for `reward`: a trained reward model, or a model that has yet to become one.

    Raises ModelNotFound, BrokenCheckpoint or UnknownArchitecture where it is neither.
    """
    try:
        return find_reward(reward, RewardSettings()).planned()
    except (ModelNotFound, BrokenCheckpoint):
        return resolve(reward)
