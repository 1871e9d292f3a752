"""The script that runs TRL under FSDP2 on processes of a CPU, written beside the configuration.

accelerate 1.15 turns every distributed type into FSDP but MULTI_CPU (AcceleratorState), though nothing of FSDP2 asks
for a card, and no field of its configuration says otherwise. The type is read for that alone, and is FSDP from then on.
"""

from __future__ import annotations

from qserve.training.job import TrainingRun

__all__ = ["FSDP_SCRIPT", "fsdp_script"]

FSDP_SCRIPT = "fsdp_on_cpu.py"
_TEXT = '''"""trl {trainer} under FSDP2 on processes of a CPU, where accelerate 1.15 runs DDP. Written by qserve."""

from accelerate.state import DistributedType, PartialState
from trl.scripts.{trainer} import main, make_parser

if __name__ == "__main__":
    arguments = make_parser().parse_args_and_config(fail_with_unknown_args=False)  # joins the group of processes
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_XPU  # any type that may become FSDP
    main(*arguments)
'''


def fsdp_script(run: TrainingRun) -> str | None:
    """Its text; None for a run that needs none."""
    return _TEXT.format(trainer=run.trainer) if run.shards_on_cpu and run.request.fsdp else None
