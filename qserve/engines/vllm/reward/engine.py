"""vLLM as an engine of the reward host: what it is asked for, and the worker over its server."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from qserve.core.hardware import Hardware
from qserve.core.model_spec import Head
from qserve.detect.packages import Packages
from qserve.engines.vllm.detect import VllmChecks
from qserve.errors import WorkerFailed
from qserve.planner import make_plan
from qserve.planner.request import PlanRequest
from qserve.reward.checkpoints import RewardCheckpoint
from qserve.reward.judges.served import ServedChat
from qserve.reward.settings import RewardSettings
from qserve.worker import worker_process
from qserve.worker.process import WorkerSpec

__all__ = ["ENGINE"]


class _VllmReward:
    """See `RewardEngine`."""

    def why_not_scored(self, reward: RewardCheckpoint, settings: RewardSettings) -> str | None:
        """vLLM recognises a classifier of one label by its class and `score.weight`, and reads it at the last token
        that it is sent, which is the one where transformers' class reads (`VllmScorer`).
        """
        remedy = f"{reward.id} is served by qserve's own scorer; leave --reward-engine vllm out"
        if reward.recipe is not None:
            return f"{reward.id} combines parts, which qserve's own worker scores; leave --reward-engine vllm out"
        if reward.format != "sequence-classification":
            return (
                f"vLLM would not score a {reward.format} checkpoint as it was trained: it supports only a head named "
                f"score, with one label, in a whole sequence-classification checkpoint. {remedy}"
            )
        if settings.answer_tokens is not None:
            return f"--answer-tokens is for rerankers. {remedy}"
        if reward.head.has_bias:
            return f"vLLM's classifiers have no bias, and {reward.head.prefix} has one. {remedy}"
        if not reward.path.is_dir() or reward.body_prefix != "model.":
            return f"vLLM needs a folder with config, weights (model.*) and tokenizer. {remedy}"
        pooling = settings.pooling or reward.pooling
        if pooling not in ("last", "not-pad"):
            return f"vLLM reads a classifier at the last token, but --pooling {pooling} reads another place. {remedy}"
        return None

    def why_not(
        self,
        reward: RewardCheckpoint,
        settings: RewardSettings,
        hardware: Hardware,
        request: PlanRequest,
        packages: Packages,
    ) -> str | None:
        checks, planned = VllmChecks(), reward.planned()
        # What may stand against vLLM is asked as for any model.
        body = replace(planned, spec=replace(planned.spec, head=Head("lm")))
        obstacle = checks.why_not_asked(body, hardware, request, packages)
        return obstacle or checks.why_not_served(make_plan(planned, hardware, request), packages)

    async def serve(self, spec: WorkerSpec, settings: RewardSettings, served: ServedChat | None) -> None:
        """The same app over a vLLM server, which is our child; without it this worker ends, and is started again."""
        from qserve.engines.vllm.reward.scorer import VllmScorer
        from qserve.engines.vllm.reward.server import VllmServer
        from qserve.reward.checkpoints import recognise
        from qserve.reward.serving.app import build_app
        from qserve.reward.serving.memory import with_process_memory

        async with VllmServer(spec) as server:
            scorer = VllmScorer(server, recognise(spec.folder, settings, spec.models[0]), spec.plan, settings)
            app = build_app(scorer, spec.models, spec.key, lambda: with_process_memory(server.memory()))
            listening = asyncio.create_task(worker_process.listen(app, spec.address))
            ended = asyncio.create_task(server.ended())
            await asyncio.wait((listening, ended), return_when=asyncio.FIRST_COMPLETED)
            if not listening.done():
                raise WorkerFailed(f"vLLM ended with status {ended.result()}; see the worker's log")
            ended.cancel()


ENGINE = _VllmReward()
