"""What a run tells while it goes: every log line, memory by phase on some steps, and whether it was asked to stop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from qserve.model.mapped import trim_heap
from qserve.training.process.events import EventLog
from qserve.training.process.memory import PeakMemory, optimizer_bytes, storage_bytes

__all__ = ["EventReporter", "MemoryMeter", "StopOnRequest"]

# Peaks are the same step after step at one length: the first ones of a process (one that resumes a run may do no more),
# then now and then, which costs next to nothing.
_FIRST_STEPS = 5
_EVERY_STEPS = 25


class EventReporter(TrainerCallback):  # type: ignore[misc]
    """Log lines with their step and the seconds of the steps since the last."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._began_s = time.monotonic()
        self._step_s: list[float] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._events.write("train", from_step=state.global_step, to_step=state.max_steps)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._began_s = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._step_s.append(time.monotonic() - self._began_s)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        kind = "evaluated" if any(name.startswith("eval_") for name in logs or ()) else "logged"
        step_s = sum(self._step_s) / len(self._step_s) if self._step_s and kind == "logged" else None
        self._step_s.clear()
        self._events.write(kind, step=state.global_step, step_s=step_s, **(logs or {}))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._events.write("saved", step=state.global_step)


class MemoryMeter(TrainerCallback):  # type: ignore[misc]
    """Peak memory of backward (forward and backward passes) and step (the optimizer's), and what is held when.

    `gives_back`: before each step of the optimizer the heap's freed blocks go back to the system, and the next forward
    pass has to ask for them again.
    """

    def __init__(self, events: EventLog, memory: PeakMemory, *, gives_back: bool = False) -> None:
        self._events, self._memory = events, memory
        self._gives_back = gives_back and not memory.on_card
        self._backward_bytes = 0
        self._gradients_bytes = 0
        self._first_step = 0
        self._now = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._first_step = state.global_step
        if not self._memory.on_card:
            trim_heap()  # what loading left

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = state.global_step - self._first_step
        self._now = step < _FIRST_STEPS or step % _EVERY_STEPS == 0
        if self._now:
            self._memory.reset()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if self._now:
            self._backward_bytes = self._memory.peak_bytes()
            self._gradients_bytes = storage_bytes(parameter.grad for parameter in model.parameters())
        if self._gives_back:
            trim_heap()
        if self._now:
            self._memory.reset()

    def on_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any
    ) -> None:
        if not self._now:
            return
        step_bytes = self._memory.peak_bytes()
        self._events.write(
            "memory",
            step=state.global_step + 1,
            baseline_bytes=self._memory.baseline_bytes,
            backward_bytes=self._backward_bytes,
            step_bytes=step_bytes,
            held_bytes=self._memory.held_bytes(),
            driver_bytes=self._memory.driver_bytes(),
            weights_bytes=storage_bytes([*model.parameters(), *model.buffers()]),
            gradients_bytes=self._gradients_bytes,
            optimizer_bytes=optimizer_bytes(optimizer),
            source=self._memory.source,
        )


class StopOnRequest(TrainerCallback):  # type: ignore[misc]
    """Saves and ends at the next step once the stop file is there. All ranks decide together."""

    def __init__(self, stop_file: Path) -> None:
        self._file = stop_file
        self.was_asked = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if _on_any_rank(self._file.exists()):
            self.was_asked = True
            control.should_save = True
            control.should_training_stop = True


def _on_any_rank(seen: bool) -> bool:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return seen
    flag = torch.tensor([float(seen)], device="cuda" if torch.distributed.get_backend() == "nccl" else "cpu")
    torch.distributed.all_reduce(flag)
    return bool(flag.item())
