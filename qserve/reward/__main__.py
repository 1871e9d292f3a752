"""The reward worker: python -m qserve.reward SPEC.json

As qserve/engines/transformers/worker/__main__.py: it loads, listens, tells its parent how it goes on standard error,
and ends with its parent. The file holds a `WorkerSpec`, and beside it `reward`, a `RewardSettings`, and `served`, the
`ServedChat` of the same service, or null.
"""

from __future__ import annotations

from typing import Any

from qserve.reward.engines import reward_engine
from qserve.reward.judges.served import ServedChat
from qserve.reward.settings import RewardSettings
from qserve.worker import worker_process
from qserve.worker.process import WorkerSpec


async def _serve(document: dict[str, Any]) -> None:
    spec, settings = WorkerSpec.from_json(document), RewardSettings.from_json(document["reward"])
    await reward_engine(spec.plan.engine).serve(spec, settings, ServedChat.from_json(document["served"]))


def main() -> None:
    """Run the worker that the JSON file named on the command line describes."""
    worker_process.run(_serve, "quantize the reward model or lower --max-length")


if __name__ == "__main__":
    main()
