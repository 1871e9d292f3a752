"""What is known of a machine before a service is planned: memory and speed that earlier runs measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.errors import QserveError
from qserve.planner.calibration import Residual
from qserve.planner.plan import Plan
from qserve.planner.speed.calibration import Measured
from qserve.service.machine import Machine
from qserve.service.measured_speed import measured_speed

if TYPE_CHECKING:
    from qserve.runs.loads import MeasuredLoads

__all__ = ["Knowledge"]

_UNREAD = "planned without what earlier runs measured: {}"


@dataclass(frozen=True)
class Knowledge:
    """Of the machine whose runs are kept in the folder `state`: None: of no machine, which leaves the CPU's assumed
    rates. `learns`: runs teach as well, not only the CPU's measured rates. `warn` is told where a store can't be read:
    no plan depends on it.
    """

    state: Path | None = None
    learns: bool = False
    warn: Callable[[str], object] = lambda message: None

    @classmethod
    def of(cls, machine: Machine, state: Path, *, is_off: bool, warn: Callable[[str], object]) -> Knowledge:
        """What was learned on this machine; nothing of another one. `is_off`: --no-learn."""
        return cls(state, machine.is_here and not is_off, warn)

    def memory(self) -> tuple[Residual, ...]:
        """The residuals of runs, from which `qserve.planner.calibrate` takes what holds for a plan."""
        if self.state is None or not self.learns:
            return ()
        from qserve.runs import RunStore

        try:
            store = RunStore.open_existing(self.state)
            return store.residuals() if store else ()
        except QserveError as error:
            self.warn(_UNREAD.format(error))
            return ()

    def loads(self, plan: Plan) -> MeasuredLoads | None:
        """How models of the plan's shape were loaded here; None: none was, or nothing is learned."""
        if self.state is None or not self.learns:
            return None
        from qserve.runs import RunStore

        try:
            store = RunStore.open_existing(self.state)
            return store.loads(plan.engine, plan.shape) if store else None
        except QserveError as error:
            self.warn(_UNREAD.format(error))
            return None

    def speed(self, checkpoint: Checkpoint, hardware: Hardware) -> Measured:
        """The CPU's rates, and the residuals of runs of this model."""
        try:
            return measured_speed(self.state, checkpoint, hardware, learns=self.learns)
        except QserveError as error:
            self.warn(f"planned without the speed of earlier runs: {error}")
            return measured_speed(self.state, checkpoint, hardware, learns=False)
