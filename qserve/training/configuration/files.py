"""Writes a run's configuration: train.yaml for TRL, accelerate.yaml, and the command that runs both without qserve."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from qserve.planner.training.training_constants import ZERO_BUCKET_ELEMENTS_ON_CPU, ZERO_SUB_GROUP_ELEMENTS_ON_CPU
from qserve.training.configuration.accelerate import DEEPSPEED_FILE, accelerate_configuration, cpu_environment
from qserve.training.configuration.rewards import REWARDS_MODULE, rewards_script
from qserve.training.configuration.trl import beyond_trl, trl_configuration
from qserve.training.data.prepare import PreparedData
from qserve.training.job import TrainingRun

__all__ = ["command_without_qserve", "write_configuration"]

# accelerate 1.15 turns every distributed type into FSDP but MULTI_CPU (AcceleratorState), though nothing of FSDP2 asks
# for a card, and no field of its configuration says otherwise. The type is read for that alone, and is FSDP from
# then on.
_FSDP_SCRIPT = "fsdp_on_cpu.py"
_FSDP_RUN = '''"""trl {trainer} under FSDP2 on processes of a CPU, where accelerate 1.15 runs DDP. Written by qserve."""

from accelerate.state import DistributedType, PartialState
from trl.scripts.{trainer} import main, make_parser

if __name__ == "__main__":
    arguments = make_parser().parse_args_and_config(fail_with_unknown_args=False)  # joins the group of processes
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_XPU  # any type that may become FSDP
    main(*arguments)
'''


def write_configuration(run: TrainingRun, data: PreparedData) -> tuple[Path, Path]:
    """(TRL's file, accelerate's file), below the run's folder."""
    run.folder.mkdir(parents=True, exist_ok=True)
    trl, accelerate = run.folder / "train.yaml", run.folder / "accelerate.yaml"
    lead = [f"Without qserve: {command_without_qserve(run)}", *beyond_trl(run)]
    _write(trl, trl_configuration(run, data.num_train, data.num_eval), lead)
    _write(accelerate, accelerate_configuration(run), ())
    if run.shards_on_cpu and run.request.zero_stage:
        text = json.dumps(_deepspeed_configuration(run), indent=2)
        (run.folder / DEEPSPEED_FILE).write_text(text + "\n")
    if (script := _fsdp_script(run)) is not None:
        (run.folder / _FSDP_SCRIPT).write_text(script)
    if (script := rewards_script(run)) is not None:
        (run.folder / f"{REWARDS_MODULE}.py").write_text(script)
    return trl, accelerate


def command_without_qserve(run: TrainingRun) -> str:
    """TRL's own command line over the two files. accelerate leaves DDP over processes on a CPU to MPI, torchrun not;
    FSDP2 there is run by a script beside them.
    """
    config = ["--config", str(run.folder / "train.yaml")]
    environment = {**cpu_environment(run), **({"PYTHONPATH": str(run.folder)} if run.rewards else {})}
    set_first = [f"{name}={shlex.quote(value)}" if value else f"{name}=" for name, value in environment.items()]
    if run.device == "cpu" and run.num_processes > 1 and not run.shards_on_cpu:
        started = ["torchrun", "--standalone", "--nproc-per-node", str(run.num_processes)]
        return " ".join([*set_first, shlex.join([*started, "-m", f"trl.scripts.{run.trainer}", *config])])
    accelerate = str(run.folder / "accelerate.yaml")
    words = ["trl", run.trainer, *config, "--accelerate_config", accelerate]
    if _fsdp_script(run) is not None:
        words = ["accelerate", "launch", "--config_file", accelerate, str(run.folder / _FSDP_SCRIPT), *config]
    return " ".join([*set_first, shlex.join(words)])


def _write(file: Path, content: Mapping[str, Any], lead: Sequence[str]) -> None:
    comments = "".join(f"# {' '.join(line.split())}\n" for line in lead)
    file.write_text(comments + yaml.safe_dump(dict(content), sort_keys=False))


def _fsdp_script(run: TrainingRun) -> str | None:
    """The script that runs TRL under FSDP2 on processes of a CPU; None for a run that needs none."""
    return _FSDP_RUN.format(trainer=run.trainer) if run.shards_on_cpu and run.request.fsdp else None


def _deepspeed_configuration(run: TrainingRun) -> dict[str, Any]:
    """ZeRO in fp32 with torch's own optimizers, so that DeepSpeed compiles none: the fields of deepspeed 0.19, of which
    transformers fills in "auto" from train.yaml. Cards need no file: accelerate's own fields say enough there.

    Nothing can be prefetched during a computation that has all cores, and nothing is retained: each module is
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
