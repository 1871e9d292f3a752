"""vLLM as an engine of the reward host: what it is asked for, and the worker over its server."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from qserve.core.hardware import Hardware
from qserve.core.model_spec import Head
from qserve.detect.packages import Packages
from qserve.engines.vllm.detect import VllmChecks
from qserve.engines.vllm.reward.suits import why_not
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
        return why_not(reward, settings)

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
        from qserve.reward.serving.memory import with_own

        async with VllmServer(spec) as server:
            scorer = VllmScorer(server, recognise(spec.folder, settings, spec.models[0]), spec.plan, settings)
            app = build_app(scorer, spec.models, spec.key, lambda: with_own(server.memory()))
            listening = asyncio.create_task(worker_process.listen(app, spec.address))
            gone = asyncio.create_task(server.ended())
            await asyncio.wait((listening, gone), return_when=asyncio.FIRST_COMPLETED)
            if not listening.done():
                raise WorkerFailed(f"vLLM ended with status {gone.result()}; see the worker's log")
            gone.cancel()


ENGINE = _VllmReward()
