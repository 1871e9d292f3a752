"""qserve's own scorer as an engine of the reward host: any trained reward model, rules, judges, or parts of these."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from qserve.core.hardware import Hardware
from qserve.detect.packages import Packages
from qserve.planner.request import PlanRequest
from qserve.reward.checkpoints import RewardCheckpoint
from qserve.reward.judges.served import ServedChat
from qserve.reward.recipe import Recipe, read_recipe
from qserve.reward.settings import RewardSettings
from qserve.worker import worker_process
from qserve.worker.free_heap import giving_back_free_heap
from qserve.worker.heartbeat import Heartbeat, heartbeat_file
from qserve.worker.process import WorkerSpec, report_note, report_phase
from qserve.worker.quick_imports import quick_imports

if TYPE_CHECKING:
    from qserve.reward.scoring.scorer import RewardScorer

__all__ = ["ENGINE"]

_log = logging.getLogger("qserve.worker")
_SCORING_DIED = 70


class _TransformersReward:
    """See `RewardEngine`."""

    def why_not_scored(self, reward: RewardCheckpoint, settings: RewardSettings) -> str | None:
        return None

    def why_not(
        self,
        reward: RewardCheckpoint,
        settings: RewardSettings,
        hardware: Hardware,
        request: PlanRequest,
        packages: Packages,
    ) -> str | None:
        return None

    async def serve(self, spec: WorkerSpec, settings: RewardSettings, served: ServedChat | None) -> None:
        recipe = read_recipe(Path(settings.recipe)) if settings.recipe is not None else None
        if recipe is not None:
            report_note(f"a reward is {recipe.summary}")
        heartbeat = Heartbeat(heartbeat_file(spec.socket))
        if recipe is not None and recipe.model is None:
            await _serve_without_model(spec, recipe, heartbeat, served)
            return
        # Imported here: it takes seconds, and the parent has been told what they are spent on.
        with quick_imports():
            from qserve.reward.recipe.parts import RecipeScorer
            from qserve.reward.serving.app import build_app
            from qserve.reward.serving.memory import measured_memory

        scorer = _load(spec, settings)
        scorer.beat_on_the_way(heartbeat)
        scorer.start(on_death=_die)
        parts = RecipeScorer(recipe, heartbeat, served) if recipe is not None else None
        if parts is not None:
            parts.start()
        try:
            app = build_app(scorer, spec.models, spec.key, lambda: asyncio.to_thread(measured_memory, scorer), parts)
            async with giving_back_free_heap():
                await worker_process.listen(app, spec.address)
        finally:
            scorer.stop()
            if parts is not None:
                await parts.close()


def _die(error: BaseException) -> None:
    """Nothing can be scored any more: end at once, so that clients hear of it and the supervisor restarts us."""
    _log.error("scoring stopped: %s", error)
    os._exit(_SCORING_DIED)


async def _serve_without_model(
    spec: WorkerSpec, recipe: Recipe, heartbeat: Heartbeat, served: ServedChat | None
) -> None:
    """Rules and judges are all there is: no torch."""
    from qserve.reward.recipe.parts import RecipeScorer
    from qserve.reward.recipe.without_model import NoModel, process_memory
    from qserve.reward.serving.app import build_app

    parts = RecipeScorer(recipe, heartbeat, served)
    parts.start()
    try:
        app = build_app(NoModel(spec.plan.workload.max_model_len), spec.models, spec.key, process_memory, parts)
        await worker_process.listen(app, spec.address)
    finally:
        await parts.close()


def _load(spec: WorkerSpec, settings: RewardSettings) -> RewardScorer:
    with quick_imports():
        from qserve.model.card_share import keep_to_plan
        from qserve.model.packed_cache.folder import packed_folder
        from qserve.reward.checkpoints import recognise
        from qserve.reward.open import make_scorer

    report_phase("loading weights and warming up")
    keep_to_plan(spec.plan)
    checkpoint = recognise(spec.folder, settings, spec.models[0])
    scorer = make_scorer(checkpoint, spec.plan, settings, packed_folder(spec.packed_cache_bytes))
    # Loading leaves a million long-lived objects; without this every collection walks all of them.
    gc.collect()
    gc.freeze()
    return scorer


ENGINE = _TransformersReward()
