"""One run, start to end: build, train, evaluate, save; whatever ends it is told in one event."""

from __future__ import annotations

import gc
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from qserve.errors import UsageError
from qserve.training.heap import is_tight
from qserve.training.job import TrainingRun
from qserve.training.process.callbacks import EventReporter, MemoryMeter, StopOnRequest
from qserve.training.process.events import EventLog
from qserve.training.process.failures import failure_of
from qserve.training.process.memory import PeakMemory, storage_bytes
from qserve.training.process.sharding import elements, prepare_sharding
from qserve.worker.quick_imports import quick_imports

__all__ = ["main", "train"]


def main(job_file: Path) -> int:
    """The exit status: 0 when it ended, was stopped or can be resumed; 1 after a failure that was told."""
    run = TrainingRun.read(job_file)
    events = EventLog(run.events_file if int(os.environ.get("RANK", "0")) == 0 else None)
    try:
        train(run, events)
    except BaseException as error:
        failure = failure_of(error, run)
        if failure is None:
            raise
        events.write("failed", **failure)
        sys.stderr.write(f"{failure['reason']}\n")
        return 1
    return 0


def train(run: TrainingRun, events: EventLog) -> None:
    """Raises whatever the libraries raise."""
    began_s = time.monotonic()
    with quick_imports():
        from qserve.training.process.rollouts import RolloutSamples
        from qserve.training.process.trainers import make_trainer, trainer_class

        prepare_sharding(run)
        # Loads it: what is measured from here on is the run's own.
        trainer_class("steps" if run.request.step_labels else "scores" if run.data.labels else run.trainer)
    # Trainers collect garbage by hand, and none of these libraries is any: half a second each time.
    gc.collect()
    gc.freeze()
    memory = PeakMemory(run.device)
    events.write(
        "imported",
        seconds=round(time.monotonic() - began_s, 2),
        baseline_bytes=memory.baseline_bytes,
        peak_flops_per_s=_peak_rate(run),
    )
    stop = StopOnRequest(run.stop_file)
    memory.reset()
    trainer = make_trainer(run, [EventReporter(events), MemoryMeter(events, memory, gives_back=is_tight()), stop])
    reference = getattr(trainer, "ref_model", None)
    if run.trainer == "grpo":
        trainer.add_callback(RolloutSamples(events, trainer))
    events.write(
        "loaded",
        peak_bytes=memory.peak_bytes(),
        held_bytes=memory.held_bytes(),
        weights_bytes=storage_bytes([*trainer.model.parameters(), *trainer.model.buffers()]),
        reference_bytes=storage_bytes([*reference.parameters(), *reference.buffers()]) if reference is not None else 0,
        parameters=sum(elements(parameter) for parameter in trainer.model.parameters()),
        trainable=sum(elements(parameter) for parameter in trainer.model.parameters() if parameter.requires_grad),
        num_train=len(trainer.train_dataset),
        num_eval=len(trainer.eval_dataset) if trainer.eval_dataset is not None else 0,
        num_ties=getattr(trainer, "num_ties", 0),
    )
    _train_or_load(trainer, run, _last_checkpoint(run))
    if stop.was_asked:
        events.write("stopped", step=trainer.state.global_step)
        return
    _finish(trainer, run, events)
    events.write("ended", step=trainer.state.global_step, seconds=round(time.monotonic() - began_s, 2))


def _peak_rate(run: TrainingRun) -> float:
    """Of what the run computes in: under autocast, too, products are in 16 bit."""
    import torch

    from qserve.training.process.peak_rate import peak_flops_per_s

    return peak_flops_per_s(run.device, torch.float32 if run.request.precision == "fp32" else torch.bfloat16)


def _train_or_load(trainer: Any, run: TrainingRun, checkpoint: str | None) -> None:
    """A run with nothing left to do is loaded: transformers would train it one step more."""
    if checkpoint is not None:
        from transformers import TrainerState
        from transformers.trainer import TRAINER_STATE_NAME

        state = TrainerState.load_from_json(str(Path(checkpoint) / TRAINER_STATE_NAME))
        if state.global_step >= _max_steps(trainer):
            if run.request.sharding_stage:  # whose engine is made by training alone
                raise UsageError(
                    f"this run has done all of its {state.global_step} steps; {checkpoint} has the finished model. To "
                    "train it further, raise --max-steps or --epochs"
                )
            trainer.state = state
            trainer._load_from_checkpoint(checkpoint)
            return
    trainer.train(resume_from_checkpoint=checkpoint)


def _max_steps(trainer: Any) -> int:
    """Optimizer steps of the whole run, as transformers counts them."""
    args = trainer.args
    if args.max_steps > 0:
        return int(args.max_steps)
    num_batches, num_accumulated = len(trainer.get_train_dataloader()), int(args.gradient_accumulation_steps)
    return math.ceil(float(args.num_train_epochs) * max(1, math.ceil(num_batches / num_accumulated)))


def _finish(trainer: Any, run: TrainingRun, events: EventLog) -> None:
    from qserve.training.process.saving import save_model

    if trainer.eval_dataset is not None:
        if not _is_evaluated(trainer):
            trainer.evaluate()
        from qserve.training.process.held_out import pairs_right, report_held_out

        if run.trainer == "reward":
            events.write("held out", **report_held_out(trainer, run))
        elif run.trainer == "dpo":
            events.write("held out", **pairs_right(trainer, "eval_rewards/accuracies"))
    save_model(trainer, run)
    events.write("model saved", folder=str(run.output))


def _is_evaluated(trainer: Any) -> bool:
    """Whether the weights that are saved were evaluated: transformers does so after the last step, before early
    stopping goes back to the best ones.
    """
    state = trainer.state
    if trainer.args.load_best_model_at_end and state.best_global_step not in (None, state.global_step):
        return False
    logged = (one for one in state.log_history if one["step"] == state.global_step)
    return any(name.startswith("eval_") for one in logged for name in one)


def _last_checkpoint(run: TrainingRun) -> str | None:
    """The newest whole one; None at a first start. The parent has cleared the folder where it does not resume."""
    from transformers.trainer_utils import get_last_checkpoint

    last: str | None = get_last_checkpoint(str(run.output)) if run.output.is_dir() else None
    return last
