"""The command line of a training request: what `qserve plan train` would have to be called with."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields

from qserve.planner.training.request import TrainingRequest

__all__ = ["command_line", "with_count"]

_FLAGS = {"zero_stage": "--zero"}
_LEFT_OUT = ("method", "vllm", "upcast_logits", "runtime_bytes")


def command_line(model: str, gpu: str | None, request: TrainingRequest, reward: str | None = None) -> str:
    """`qserve plan train …` with every flag that differs from its default."""
    words = ["qserve", "plan", "train", "--method", request.method, "--model", model]
    words += ["--gpu", gpu] if gpu else []
    words += ["--reward-model", reward] if reward else []
    for field in fields(TrainingRequest):
        value = getattr(request, field.name)
        if field.name in _LEFT_OUT or value == field.default:
            continue
        flag = _FLAGS.get(field.name, "--" + field.name.replace("_", "-"))
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [flag, str(value)]
    return shlex.join(words + _vllm_words(request))


def _vllm_words(request: TrainingRequest) -> list[str]:
    vllm = request.vllm
    if vllm is None:
        return []
    words = ["--vllm", vllm.mode]
    if vllm.gpu_memory_utilization is not None:
        words += ["--gpu-memory-utilization", str(vllm.gpu_memory_utilization)]
    if vllm.tensor_parallel_size > 1:
        words += ["--vllm-tensor-parallel-size", str(vllm.tensor_parallel_size)]
    if vllm.mode == "separate" and vllm.num_gpus > 1:
        words += ["--vllm-gpus", str(vllm.num_gpus)]
    return [*words, "--vllm-sleep"] if vllm.sleep else words


def with_count(gpu: str, count: int) -> str:
    """The same --gpu with `count` cards: rtx-4090:2 → rtx-4090:4."""
    if "=" in gpu:
        return re.sub(r",?count=\d+", "", gpu).lstrip(",") + f",count={count}"
    return f"{gpu.partition(':')[0]}:{count}"
