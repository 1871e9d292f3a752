"""How a worker process is started and how its output is read: one `Launch` per kind of worker.

The supervisor (`qserve.supervisor`) starts, watches and ends processes and knows nothing of engines; an engine knows
its own command line, log and readiness and nothing of supervision. This is the interface between the two.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from qserve.errors import QserveError, UsageError
from qserve.planner.engine import engine_named, load_attribute
from qserve.planner.plan import Plan
from qserve.worker.base import WorkerFacts
from qserve.worker.heartbeat import Progress
from qserve.worker.process import WorkerSpec

__all__ = ["EngineLaunch", "Launch", "Retry", "SendRequest", "engine_launch"]

SendRequest = Callable[[str, str, bytes], Awaitable[tuple[int, bytes]]]
"""`await send(method, path, body)`: status and body of the worker's answer; (0, b"") when it can't be reached."""


class Launch(Protocol):
    """One way to be a worker.

    Attributes:
        plan: what is put into effect; None for a worker that has no model.
        command: program and arguments; a key never stands in them.
        environment: the child's whole environment.
        measures_free_memory: while it starts; then nothing else may start on the same card.
        notes: what the worker said that its user should know, though nothing failed.
    """

    @property
    def plan(self) -> Plan | None: ...

    command: tuple[str, ...]
    environment: Mapping[str, str]
    measures_free_memory: bool
    notes: list[str]

    def begin(self) -> None:
        """A new start follows: forget what the last one said, remove what it left behind."""

    def hear(self, line: str) -> str | None:
        """Take a line of the worker's log in; the phase that begins with it, for people."""

    async def is_ready(self, send: SendRequest) -> bool:
        """Whether it answers requests now. Asked again and again while it starts; raises where it never will."""

    async def is_well(self, send: SendRequest) -> bool | None:
        """Whether it is alive: False when it says itself that it is not, None when it says nothing."""

    async def introduce(self, send: SendRequest, facts: WorkerFacts) -> WorkerFacts:
        """Once it is ready: its facts with what only the running engine knows."""

    async def progress(self, send: SendRequest) -> Progress | None:
        """How far its steps have come; None where it does not tell, or not now. Must not wait long."""

    def computing(self, pid: int) -> list[int]:
        """Those of its processes that compute; `pid` is the one that was started."""

    def failure(self, returncode: int, *, is_outside: bool = False) -> QserveError:
        """Why the process that has ended failed, in a sentence that helps; a negative `returncode` is a signal.

        `is_outside`: it was seen that memory was not the reason of a SIGKILL.
        """

    def retry(self) -> Retry | None:
        """After a failed start: a smaller plan that the engine's own numbers call for; None where none helps."""

    def retry_stuck(self) -> Retry | None:
        """After a start that got stuck: the same plan without what is known to hang; None where nothing is left out."""

    async def memory(self, send: SendRequest, pid: int) -> dict[str, Any]:
        """What GET /v1/qserve/memory says of this worker; `pid` is the process that was started."""


class EngineLaunch(Protocol):
    """What an engine's `launch` names in the registry (`qserve.planner.engine.Engine`): how its chat worker is started.

    Attributes:
        takes_engine_args: --engine-args are flags of its own server.
        verifies_quant: it can compare quantized weights with the 16-bit ones (--verify-quant).
    """

    takes_engine_args: ClassVar[bool]
    verifies_quant: ClassVar[bool]

    @classmethod
    def serving(cls, spec: WorkerSpec, file: Path, engine_args: str) -> Launch:
        """The launch of a worker that is told `spec`; `file` is where that may be written, for this user alone."""


def engine_launch(engine: str) -> type[EngineLaunch]:
    """How chat workers of a registered engine are started. Raises UsageError for one that only plans."""
    dotted = engine_named(engine).launch
    if not dotted:
        raise UsageError(f"--engine {engine}: this engine can't serve; it is for `qserve plan` only")
    launch: type[EngineLaunch] = load_attribute(dotted)
    return launch


@dataclass(frozen=True)
class Retry:
    """The same worker with a changed plan, and what changed and why, for the user."""

    launch: Launch
    reason: str

    @property
    def plan(self) -> Plan:
        """The changed plan."""
        assert self.launch.plan is not None, "what is tried again is a plan"
        return self.launch.plan
