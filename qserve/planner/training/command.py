"""The command line of a training request: what `qserve plan train` or `qserve train` would have to be called with."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields, replace

from qserve.planner.training.training_defaults import default_precision, default_tiled_loss, with_accumulation
from qserve.planner.training.training_request import TrainingRequest
from qserve.planner.training.trl_releases import OUR_TRL

__all__ = ["command_line", "is_without_master_copy", "train_command", "why_no_run", "with_count"]

_ACCUMULATION = "gradient_accumulation_steps"
_FLAGS = {"zero_stage": "--zero"}
_LEFT_OUT = ("method", "vllm", "upcast_logits", "runtime_bytes")


def command_line(
    model: str,
    gpu: str | None,
    request: TrainingRequest,
    reward: str | None = None,
    num_devices: int = 1,
    *,
    on_cpu: bool = False,
) -> str:
    """`qserve plan train …` with every flag that differs from its default."""
    usual = {
        **{field.name: field.default for field in fields(TrainingRequest)},
        _ACCUMULATION: with_accumulation(request, num_devices).gradient_accumulation_steps,
        "precision": default_precision(request.zero_stage, on_cpu=on_cpu),
        "tiled_loss": not request.fused_loss and default_tiled_loss(request.method),
    }
    words = ["qserve", "plan", "train", "--method", request.method, "--model", model]
    words += ["--gpu", gpu] if gpu else []
    words += ["--reward-model", reward] if reward else []
    for field in fields(TrainingRequest):
        value = getattr(request, field.name)
        if field.name in _LEFT_OUT or value == usual[field.name]:
            continue
        flag = _FLAGS.get(field.name, "--" + field.name.replace("_", "-"))
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [flag, str(value)]
    return shlex.join(words + _vllm_words(request))


def train_command(
    model: str,
    request: TrainingRequest,
    num_devices: int,
    data: str = "FILE",
    gpu: str | None = None,
    *,
    on_cpu: bool = False,
) -> str:
    """`qserve train …` that runs the request on this machine's cards; PPO is another trainer's.

    How it computes the loss is no flag of `qserve train`: see `why_no_run`.
    """
    ours = replace(request, tiled_loss=default_tiled_loss(request.method), fused_loss=False, evaluation=False)
    words = command_line(model, gpu, ours, num_devices=num_devices, on_cpu=on_cpu).replace(
        f"qserve plan train --method {request.method} ", f"qserve train {request.method} ", 1
    )
    # Without the flag it would take vLLM where that is installed.
    words += " --vllm none" if request.method == "grpo" and request.vllm is None and not on_cpu else ""
    rewards = " --reward REWARD" if request.method in ("grpo", "ppo") else ""
    return f"{words} --data {shlex.quote(data)}{rewards}" + (" --emit openrlhf" if request.method == "ppo" else "")


def why_no_run(request: TrainingRequest, release: str = "", *, on_cpu: bool) -> str | None:
    """Why `qserve train` would not run just this request; None: it would.

    `release`: of TRL, whose own loss or preparation of the base the request has where that is not what we run.
    """
    if request.fused_loss:
        return "`qserve train` has no fused loss: --fused-loss plans another trainer's run"
    if release:
        return f"`qserve train` runs {OUR_TRL}: --trl {release} plans another trainer's run"
    if request.kbit_fp32 != "none":
        return (
            f"`qserve train` leaves a quantized base's norms, embedding and lm_head in 16 bit: --kbit-fp32 "
            f"{request.kbit_fp32} plans another trainer's run"
        )
    if request.tiled_loss != default_tiled_loss(request.method):
        how = "computes no loss in tiles" if request.tiled_loss else "computes this loss in tiles"
        flag = "--tiled-loss" if request.tiled_loss else "--no-tiled-loss"
        return f"`qserve train {request.method}` {how}: {flag} plans another trainer's run"
    if is_without_master_copy(request) and not on_cpu:
        return (
            "`qserve train` keeps 16-bit weights with an fp32 master copy only under ZeRO: --precision mixed without "
            "--zero plans another trainer's run"
        )
    return None


def is_without_master_copy(request: TrainingRequest) -> bool:
    """Whether it asks for DeepSpeed's precision without DeepSpeed, which autocast can't do for all weights."""
    return request.precision == "mixed" and not request.zero_stage and request.tuning == "full"


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
