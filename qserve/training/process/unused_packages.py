"""Blocks imports of packages that transformers and TRL would load although the run does not use them."""

from __future__ import annotations

from pathlib import Path

from qserve.training.job import TrainingRun
from qserve.worker.unused_packages import leave_out

__all__ = ["leave_out_unused"]


def leave_out_unused(job_file: Path) -> None:
    """`leave_out` for the run in `job_file`, which `TrainingRun.write` wrote: scikit-learn, of which transformers
    imports one function for a kind of generation that no trainer uses, and vLLM where it does not write the rollouts,
    which TRL's GRPO imports wherever it is installed. 30 and 150 MiB, and seconds of every start.
    """
    leave_out("sklearn")
    if TrainingRun.read(job_file).request.vllm is None:
        leave_out("vllm")
