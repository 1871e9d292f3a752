"""The reward worker: python -m qserve.reward SPEC.json

As qserve/engine/transformers/__main__.py: it loads, listens, tells its parent how it goes on standard error, and ends
with its parent. The file holds a `WorkerSpec`, and beside it `reward`, a `RewardSettings`.
"""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qserve.engine import worker_process
from qserve.engine.heartbeat import Heartbeat, heartbeat_file
from qserve.engine.process import WorkerSpec, report_phase
from qserve.errors import WorkerFailed
from qserve.reward.recipe import Recipe, read_recipe
from qserve.reward.settings import RewardSettings

if TYPE_CHECKING:
    from qserve.reward.scoring.scorer import RewardScorer


async def _serve(document: dict[str, Any]) -> None:
    spec, settings = WorkerSpec.from_json(document), RewardSettings.from_json(document["reward"])
    if spec.plan.engine == "vllm":
        await _serve_on_vllm(spec, settings)
        return
    recipe = read_recipe(Path(settings.recipe)) if settings.recipe is not None else None
    heartbeat = Heartbeat(heartbeat_file(spec.socket))
    if recipe is not None and recipe.model is None:
        await _serve_without_model(spec, recipe, heartbeat)
        return
    # Imported here: it takes seconds, and the parent has been told what they are spent on.
    from qserve.reward.recipe.parts import RecipeScorer
    from qserve.reward.serving.app import build_app
    from qserve.reward.serving.memory import measured_memory

    scorer = _load(spec, settings)
    scorer.beat_after_rows(heartbeat)
    scorer.start()
    parts = RecipeScorer(recipe, heartbeat) if recipe is not None else None
    if parts is not None:
        parts.start()
    try:
        app = build_app(scorer, spec.models, spec.key, lambda: measured_memory(scorer), parts)
        await worker_process.listen(app, spec.socket)
    finally:
        scorer.stop()
        if parts is not None:
            await parts.close()


async def _serve_without_model(spec: WorkerSpec, recipe: Recipe, heartbeat: Heartbeat) -> None:
    """Rules and judges are all there is: no torch."""
    from qserve.reward.recipe.parts import RecipeScorer
    from qserve.reward.recipe.without_model import NoModel, own_memory
    from qserve.reward.serving.app import build_app

    parts = RecipeScorer(recipe, heartbeat)
    parts.start()
    try:
        app = build_app(NoModel(spec.plan.workload.max_model_len), spec.models, spec.key, own_memory, parts)
        await worker_process.listen(app, spec.socket)
    finally:
        await parts.close()


async def _serve_on_vllm(spec: WorkerSpec, settings: RewardSettings) -> None:
    """The same app over a vLLM server, which is our child; without it this worker ends, and is started again."""
    from qserve.reward.checkpoints import recognise
    from qserve.reward.serving.app import build_app
    from qserve.reward.serving.memory import with_own
    from qserve.reward.vllm.scorer import VllmScorer
    from qserve.reward.vllm.server import VllmServer

    async with VllmServer(spec) as server:
        scorer = VllmScorer(server, recognise(spec.folder, settings, spec.models[0]), spec.plan, settings)
        app = build_app(scorer, spec.models, spec.key, lambda: with_own(server.memory()))
        listening = asyncio.create_task(worker_process.listen(app, spec.socket))
        gone = asyncio.create_task(server.ended())
        await asyncio.wait((listening, gone), return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            raise WorkerFailed(f"vLLM ended with status {gone.result()}; the worker's log holds its last words")
        gone.cancel()


def _load(spec: WorkerSpec, settings: RewardSettings) -> RewardScorer:
    from qserve.model.card_share import keep_to_plan
    from qserve.reward.checkpoints import recognise
    from qserve.reward.open import make_scorer

    report_phase("loading weights and warming up")
    keep_to_plan(spec.plan)
    scorer = make_scorer(recognise(spec.folder, settings, spec.models[0]), spec.plan, settings)
    # Loading leaves a million long-lived objects; without this every collection walks all of them.
    gc.collect()
    gc.freeze()
    return scorer


def main() -> None:
    """Run the worker that the JSON file named on the command line describes."""
    worker_process.run(_serve, "quantize the reward model or lower --max-length")


if __name__ == "__main__":
    main()
