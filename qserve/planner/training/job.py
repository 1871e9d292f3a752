"""A training request with its model and its devices: planned, and written as a command again."""

from __future__ import annotations

from dataclasses import dataclass

from qserve.core.hardware import Device
from qserve.core.model_spec import ModelSpec
from qserve.planner.training.command import command_line
from qserve.planner.training.duration import ASSUMED_ROWS
from qserve.planner.training.planning import plan_training, refuse_packed_by_name
from qserve.planner.training.training_plan import TrainingPlan
from qserve.planner.training.training_request import TrainingRequest

__all__ = ["TrainingJob"]


@dataclass(frozen=True)
class TrainingJob:
    """A request as it was typed: what a suggestion's command repeats.

    `gpu` None: the detected cards, with `ram_bytes` of RAM beside them (None: unknown). `cpu_flop_per_s`: what a CPU's
    cores multiply at together. `packed_word`: what the model's name says of a packing that is not known, where
    `spec` is that of the 16-bit model.
    """

    model: str
    spec: ModelSpec
    gpu: str | None
    devices: tuple[Device, ...]
    request: TrainingRequest
    reward_model: str | None = None
    reward: ModelSpec | None = None
    ram_bytes: int | None = None
    num_rows: int = ASSUMED_ROWS
    cpu_flop_per_s: float | None = None
    packed_word: str = ""

    def plan(self) -> TrainingPlan:
        """Raises UsageError for what the cards or the model's packing forbid."""
        if self.packed_word:
            refuse_packed_by_name(self.spec.id, self.packed_word, self.request)
        return plan_training(
            self.spec, self.devices, self.request, self.reward, self.ram_bytes, self.num_rows, self.cpu_flop_per_s
        )

    @property
    def on_cpu(self) -> bool:
        return bool(self.devices) and self.devices[0].kind == "cpu"

    def command(self) -> str:
        words = command_line(
            self.model, self.gpu, self.request, self.reward_model, len(self.devices), on_cpu=self.on_cpu
        )
        return words if self.num_rows == ASSUMED_ROWS else f"{words} --rows {self.num_rows}"
