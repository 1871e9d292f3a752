"""The command line of a training request: what `qserve plan train` or `qserve train` would have to be called with."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields, replace

from qserve.planner.training.defaults import with_accumulation
from qserve.planner.training.request import TrainingRequest

__all__ = ["command_line", "train_command", "with_count"]

_ACCUMULATION = "gradient_accumulation_steps"
_FLAGS = {"zero_stage": "--zero"}
_LEFT_OUT = ("method", "vllm", "upcast_logits", "runtime_bytes")


def command_line(
    model: str, gpu: str | None, request: TrainingRequest, reward: str | None = None, num_devices: int = 1
) -> str:
    """`qserve plan train …` with every flag that differs from its default."""
    usual = with_accumulation(request, num_devices)
    words = ["qserve", "plan", "train", "--method", request.method, "--model", model]
    words += ["--gpu", gpu] if gpu else []
    words += ["--reward-model", reward] if reward else []
    for field in fields(TrainingRequest):
        value = getattr(request, field.name)
        default = usual.gradient_accumulation_steps if field.name == _ACCUMULATION else field.default
        if field.name in _LEFT_OUT or value == default:
            continue
        flag = _FLAGS.get(field.name, "--" + field.name.replace("_", "-"))
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [flag, str(value)]
    return shlex.join(words + _vllm_words(request))


def train_command(
    model: str, request: TrainingRequest, num_devices: int, data: str = "FILE", gpu: str | None = None
) -> str:
    """`qserve train …` that runs the request on this machine's cards; PPO is another trainer's."""
    ours = replace(request, tiled_loss=False, fused_loss=False)
    words = command_line(model, gpu, ours, num_devices=num_devices).replace(
        f"qserve plan train --method {request.method} ", f"qserve train {request.method} ", 1
    )
    rewards = " --reward REWARD" if request.method in ("grpo", "ppo") else ""
    return f"{words} --data {shlex.quote(data)}{rewards}" + (" --emit openrlhf" if request.method == "ppo" else "")


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
