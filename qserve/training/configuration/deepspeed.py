"""A `TrainingRun` that shards over processes on a CPU as DeepSpeed's own configuration.

Pure: the fields are those of deepspeed 0.19; "auto" is filled in by transformers from train.yaml. Cards need no file:
what accelerate's own fields say is enough there.
"""

from __future__ import annotations

from typing import Any

from qserve.planner.training.constants import ZERO_BUCKET_ELEMENTS_ON_CPU, ZERO_SUB_GROUP_ELEMENTS_ON_CPU
from qserve.training.job import TrainingRun

__all__ = ["deepspeed_configuration"]


def deepspeed_configuration(run: TrainingRun) -> dict[str, Any]:
    """ZeRO in fp32 with torch's own optimizers, so that DeepSpeed compiles none.

    Nothing can be prefetched beside a computation that has all cores, and nothing is kept for later: each module is
    gathered when it computes.
    """
    request = run.request
    zero: dict[str, Any] = {
        "stage": request.zero_stage,
        "reduce_bucket_size": ZERO_BUCKET_ELEMENTS_ON_CPU,
        "overlap_comm": False,
    }
    if request.offload_optimizer != "none":
        zero["offload_optimizer"] = {"device": request.offload_optimizer, "pin_memory": False}
    if request.zero_stage == 3:
        zero |= {
            "sub_group_size": ZERO_SUB_GROUP_ELEMENTS_ON_CPU,
            "stage3_prefetch_bucket_size": 0,
            "stage3_max_reuse_distance": 0,
            "stage3_gather_16bit_weights_on_model_save": True,
        }
        if request.offload_param != "none":
            zero["offload_param"] = {"device": request.offload_param, "pin_memory": False}
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "train_batch_size": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": zero,
    }
