"""Opens a scorer in this process for the value of --reward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from qserve.core.hardware import Hardware
from qserve.errors import UsageError
from qserve.model.load_cost import reset_peaks
from qserve.model.packed_cache.folder import PackedFolder
from qserve.planner import Plan, PlanRequest
from qserve.reward.checkpoints import RewardCheckpoint
from qserve.reward.find import find_reward, plan_reward
from qserve.reward.load import load_reward_model
from qserve.reward.scoring.scorer import RewardScorer
from qserve.reward.settings import RewardSettings

__all__ = ["find_reward", "make_scorer", "open_scorer", "plan_reward"]


def make_scorer(
    checkpoint: RewardCheckpoint,
    plan: Plan,
    settings: RewardSettings,
    packed: PackedFolder | None = None,
    on_progress: Callable[[float], None] = lambda share: None,
) -> RewardScorer:
    """Load `checkpoint` as `plan` says and try it once. The scorer's thread is not started.

    `packed`: where quantized weights are kept as a CPU computes with them. `on_progress` hears the loaded share.
    """
    loaded = load_reward_model(checkpoint, plan, on_progress, packed)
    reset_peaks()
    scorer = RewardScorer(
        loaded,
        settings,
        max_length=plan.workload.max_model_len,
        max_num_batched_tokens=plan.workload.max_num_batched_tokens,
    )
    scorer.warm_up()
    return scorer


def open_scorer(
    reward: str,
    settings: RewardSettings,
    hardware: Hardware,
    request: PlanRequest,
    on_progress: Callable[[float], None] = lambda share: None,
) -> RewardScorer:
    """All of it: find, plan, load, try."""
    checkpoint = find_reward(reward, settings)
    if checkpoint.recipe is not None:
        raise UsageError(
            f"{reward} combines parts, which only a server scores: start qserve up --reward {reward}, and send "
            "it the texts (eval-reward: --url)"
        )
    if settings.max_length is not None and request.max_model_len is None:
        request = replace(request, max_model_len=settings.max_length)
    return make_scorer(checkpoint, plan_reward(checkpoint, hardware, request), settings, on_progress=on_progress)
