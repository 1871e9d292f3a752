"""A process that has imported torch already, for the next model that is loaded: most of a small model's start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from qserve.errors import QserveError
from qserve.supervisor.child import Child
from qserve.worker.launch import Launch
from qserve.worker.standby import Role
from qserve.worker.unused_packages import unused_by

__all__ = ["Standby"]

_log = logging.getLogger("qserve.supervisor")
# They are read when torch is imported, and can't be changed afterwards.
_READ_AT_IMPORT = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Standby:
    """One process at a time. `begin` starts it, `take` makes it a worker; then there is none until the next `begin`."""

    def __init__(self, module: str, launch: Launch, log_file: Path) -> None:
        """Of workers of `module`, one of which `launch` starts: it has that one's environment, and leaves out what that
        one leaves out.
        """
        self._module = module
        self._unused = _unused(launch)
        self._environment = launch.environment
        self._log_file = log_file
        self._child: Child | None = None

    async def begin(self) -> None:
        """Start it, if it does not run. A failure costs the time that it saves."""
        if self._child is not None and self._child.returncode is None:
            return
        await self.stop()
        command = (sys.executable, "-m", "qserve.worker.standby", self._module, *self._unused)
        try:
            self._child = await Child.start(command, self._environment, self._log_file, lambda line: None)
        except QserveError as error:
            _log.warning("no process stands by for the next model: %s", error)

    def take(self, launch: Launch, log_file: Path, hear: Callable[[str], None]) -> Child | None:
        """The process, as the worker that `launch` describes; None where there is none that fits.

        One that still imports reads what it is to become when it is done.
        """
        child = self._child
        if child is None or child.returncode is not None or not self._fits(launch):
            return None
        self._child = None
        module, spec_file = launch.command[2:]
        changed = {name: value for name, value in launch.environment.items() if self._environment.get(name) != value}
        child.become(Role(module, spec_file, changed).line(), log_file, hear)
        return child

    async def stop(self) -> None:
        """End it."""
        child, self._child = self._child, None
        if child is not None:
            await child.end()
            with contextlib.suppress(asyncio.TimeoutError):
                await child.reap()

    def _fits(self, launch: Launch) -> bool:
        if launch.command[:2] != (sys.executable, "-m") or len(launch.command) != 4:
            return False
        same = all(launch.environment.get(name) == self._environment.get(name) for name in _READ_AT_IMPORT)
        return same and _unused(launch) == self._unused


def _unused(launch: Launch) -> tuple[str, ...]:
    return unused_by(json.loads(Path(launch.command[-1]).read_text()))
