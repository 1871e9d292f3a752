"""Writes a run's configuration: train.yaml for TRL, accelerate.yaml, and the command that runs both without qserve."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from qserve.training.configuration.accelerate import DEEPSPEED_FILE, accelerate_configuration, cpu_environment
from qserve.training.configuration.deepspeed import deepspeed_configuration
from qserve.training.configuration.fsdp import FSDP_SCRIPT, fsdp_script
from qserve.training.configuration.rewards import REWARDS_MODULE, rewards_script
from qserve.training.configuration.trl import beyond_trl, trl_configuration
from qserve.training.data.prepare import PreparedData
from qserve.training.job import TrainingRun

__all__ = ["command_without_qserve", "write_configuration"]


def write_configuration(run: TrainingRun, data: PreparedData) -> tuple[Path, Path]:
    """(TRL's file, accelerate's file), below the run's folder."""
    run.folder.mkdir(parents=True, exist_ok=True)
    trl, accelerate = run.folder / "train.yaml", run.folder / "accelerate.yaml"
    lead = [f"Without qserve: {command_without_qserve(run)}", *beyond_trl(run)]
    _write(trl, trl_configuration(run, data.num_train, data.num_eval), lead)
    _write(accelerate, accelerate_configuration(run), ())
    if run.shards_on_cpu and run.request.zero_stage:
        text = json.dumps(deepspeed_configuration(run), indent=2)
        (run.folder / DEEPSPEED_FILE).write_text(text + "\n")
    if (script := fsdp_script(run)) is not None:
        (run.folder / FSDP_SCRIPT).write_text(script)
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
    if fsdp_script(run) is not None:
        words = ["accelerate", "launch", "--config_file", accelerate, str(run.folder / FSDP_SCRIPT), *config]
    return " ".join([*set_first, shlex.join(words)])


def _write(file: Path, content: Mapping[str, Any], lead: Sequence[str]) -> None:
    comments = "".join(f"# {' '.join(line.split())}\n" for line in lead)
    file.write_text(comments + yaml.safe_dump(dict(content), sort_keys=False))
