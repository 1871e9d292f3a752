"""`UpOptions`: how a service is run, beyond the plans of its models."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from qserve.batches import FileBounds
from qserve.core.hardware import HostProcess
from qserve.gateway.settings import GatewaySettings
from qserve.service.residents import ResidentsPlan
from qserve.supervisor.gateways import Processes
from qserve.supervisor.memory.watch import MemoryBounds
from qserve.supervisor.record import Recording
from qserve.supervisor.takeover.launched import Launched
from qserve.supervisor.takeover.taking import Taking

__all__ = ["UpOptions"]


@dataclass(frozen=True)
class UpOptions:
    """The options of `qserve up` beyond the plans.

    Attributes:
        host: address to listen on; other than loopback needs a key.
        port: 0 takes a free one.
        gateway: keys, limits and origins.
        drain_timeout_s: how long running requests may take to finish when the service stops.
        run_folder: where workers' output goes.
        recording: how the run is written down; None: not at all.
        ready_file: written as soon as the service is ready, for programs: url, pid, run_folder.
        processes: number, logs and traces of gateway processes.
        ui: the web UI at once (True), when `/` is first opened (None), or never (False).
        strict: a chat model that serves noise ends the service (`sanity/`).
        start_timeout_s: how long a worker's start may show no progress; None: by phase (`start_watch.py`).
        beside: planned memory of the processes without a model.
        memory: what of the machine's memory stays free.
        files: the folder of files and batches; None: none are kept.
        file_bounds: of that folder.
        launched: what the workers are started from, for a service that takes over from this one.
        taking: the service that this one takes over from, with its port and its workers; None: from none.
        residents: the plan of models that take turns in memory; None: there are none.

    """

    host: str
    port: int
    gateway: GatewaySettings
    drain_timeout_s: float
    run_folder: Path
    ready_file: Path | None = None
    processes: Processes = field(default_factory=Processes)
    ui: bool | None = None
    recording: Recording | None = None
    strict: bool = False
    start_timeout_s: float | None = None
    beside: tuple[HostProcess, ...] = ()
    memory: MemoryBounds = field(default_factory=MemoryBounds)
    files: Path | None = None
    file_bounds: FileBounds = field(default_factory=FileBounds)
    launched: Launched = field(default_factory=Launched)
    taking: Taking | None = None
    residents: ResidentsPlan | None = None
