"""A `TrainingRun` as accelerate's own configuration: `accelerate launch --config_file FILE`.

Pure: the fields are those that `accelerate config` 1.15 writes.
"""

from __future__ import annotations

from typing import Any

from qserve.training.job import TrainingRun

__all__ = ["accelerate_configuration"]


def accelerate_configuration(run: TrainingRun) -> dict[str, Any]:
    """One process, DDP, or DeepSpeed by the request's ZeRO stage."""
    request = run.request
    kind = "DEEPSPEED" if request.zero_stage else "NO"
    if run.num_processes > 1 and not request.zero_stage:
        kind = "MULTI_CPU" if run.device == "cpu" else "MULTI_GPU"
    made: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": kind,
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": "no" if request.precision == "fp32" else "fp16" if request.base == "fp16" else "bf16",
        "num_machines": 1,
        "num_processes": run.num_processes,
        "use_cpu": run.device == "cpu",
    }
    if run.device == "cuda":
        made["gpu_ids"] = ",".join(map(str, range(run.num_processes)))
    if request.zero_stage:
        made["deepspeed_config"] = _deepspeed(run)
    return made


def _deepspeed(run: TrainingRun) -> dict[str, Any]:
    request = run.request
    made: dict[str, Any] = {
        "zero_stage": request.zero_stage,
        "offload_optimizer_device": request.offload_optimizer,
        "gradient_accumulation_steps": request.gradient_accumulation_steps,
    }
    if request.zero_stage == 3:
        made |= {
            "offload_param_device": request.offload_param,
            "zero3_init_flag": True,
            "zero3_save_16bit_model": True,
        }
    if "nvme" in (request.offload_optimizer, request.offload_param):
        folder = str(run.output / "nvme")
        made |= {"offload_optimizer_nvme_path": folder, "offload_param_nvme_path": folder}
    return made
