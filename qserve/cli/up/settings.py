"""From the flags of `qserve up` to the settings of gateway, files and service."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qserve.batches import FileBounds
from qserve.cli.command_line import without_secrets
from qserve.core.hardware import Hardware
from qserve.errors import UsageError
from qserve.gateway.keys.entries import read_keys
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.telemetry.tracing import to_collector
from qserve.library.own_server import STARTED_BY
from qserve.supervisor import UpOptions, ports
from qserve.supervisor.gateways import Processes
from qserve.supervisor.keys import keys_in_use, keys_of_file
from qserve.supervisor.memory.watch import MemoryBounds
from qserve.supervisor.takeover.launched import Launched, asked_of, environment_of
from qserve.supervisor.takeover.taking import Taking
from qserve.units import GIB, MIB

if TYPE_CHECKING:
    from qserve.supervisor.record import Recording

__all__ = ["ServerFlags"]

_DAY_S = 24 * 3600
# Options that say where others come from.
_OF_NO_WORKER = ("config", "no_learn")


@dataclass(frozen=True)
class ServerFlags:
    """What was given of the server itself, by the names of the options; no plan depends on it."""

    host: str
    port: int
    api_key: tuple[str, ...] = field(repr=False)
    api_key_file: tuple[Path, ...]
    admin_key_file: tuple[Path, ...]
    keys: Path | None
    cors_origin: tuple[str, ...]
    shared_prefix_cache: bool
    max_queue: int
    resume_wait: float
    max_body_mib: int
    otlp_traces_endpoint: str | None
    gateway_processes: int
    log_level: str
    log_format: Literal["text", "json"]
    verbose: bool
    drain_timeout: float
    start_timeout: float | None
    min_free_ram: int | None
    ready_file: Path | None
    state_dir: Path | None
    ui: bool | None
    strict: bool
    keep_runs_days: float
    keep_runs_gib: float
    max_file_mib: int
    keep_files_days: float
    keep_files_gib: float
    keep_responses_mib: int
    keep_responses_minutes: float
    takeover: bool

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ServerFlags:
        """From a command's keyword arguments, which have those of the plan as well."""
        return cls(**{one.name: values[one.name] for one in fields(cls)})

    def gateway(self) -> GatewaySettings:
        """The gateway's settings. Keys are read once and kept in this process. Raises UsageError if one is needed."""
        keys = keys_in_use(self.api_key, self.api_key_file)
        ports.check_exposure(self.host, has_key=bool(keys or self.keys))
        admin_keys = (key for file in self.admin_key_file for key in keys_of_file(file, "--admin-key-file"))
        return GatewaySettings(
            keys=keys,
            key_file="" if self.keys is None else str(_known(self.keys)),
            admin_keys=tuple(admin_keys),
            cors_origins=self.cors_origin,
            allowed_hosts=() if keys or self.keys else ("localhost", "127.0.0.1", "[::1]", self.host),
            shared_prefix_cache=self.shared_prefix_cache,
            max_queue=self.max_queue,
            resume_wait_s=self.resume_wait,
            max_body_bytes=self.max_body_mib * MIB,
            max_responses_bytes=self.keep_responses_mib * MIB,
            keep_responses_s=60 * self.keep_responses_minutes,
        )

    def processes(self) -> Processes:
        """The gateway processes. Raises UsageError for a malformed address of a trace collector."""
        collector = self.otlp_traces_endpoint
        traces = to_collector(collector) if collector else None
        return Processes(self.gateway_processes, self.log_level, self.log_format, traces, collector)

    def options(
        self,
        gateway: GatewaySettings,
        processes: Processes,
        hardware: Hardware,
        run_folder: Path,
        values: Mapping[str, Any],
    ) -> UpOptions:
        """The service's options. `values` are those of the command.

        Raises UsageError for bounds of the record that make no sense, and where `--takeover` finds no service to take
        over from.
        """
        recording = _recording_of(run_folder, hardware, self.keep_runs_days, self.keep_runs_gib)
        files = FileBounds(
            self.max_file_mib * MIB, int(self.keep_files_gib * GIB), max(1, int(self.keep_files_days * _DAY_S))
        )
        server = {one.name for one in fields(self)}
        launched = Launched(
            asked_of(values, {*server, *_OF_NO_WORKER}), recording.run.versions, environment_of(os.environ)
        )
        return UpOptions(
            self.host,
            self.port,
            gateway,
            self.drain_timeout,
            run_folder,
            self.ready_file,
            processes,
            self.ui,
            recording,
            self.strict,
            self.start_timeout,
            hardware.host,
            MemoryBounds(any(card.shares_ram for card in hardware.devices), self.min_free_ram),
            run_folder.parent.parent / "files",
            files,
            launched,
            Taking.find(self.host, self.port, launched) if self.takeover else None,
        )


def _known(file: Path) -> Path:
    """The file of keys, read once. Raises UsageError for one that is none."""
    if not read_keys(file):
        raise UsageError(f"--keys {file} has no key; `qserve keys add NAME --keys {file}` makes one")
    return file.absolute()


def _recording_of(run_folder: Path, hardware: Hardware, keep_days: float, keep_gib: float) -> Recording:
    """The record of a run at its start: command, versions, hardware.

    The run's folder lies in the state folder's `runs`; its name is the id.

    Raises UsageError for bounds that make no sense.
    """
    from qserve.detect.packages import Packages
    from qserve.runs.retention import Retention
    from qserve.runs.writer import NewRun
    from qserve.supervisor.record import Recording
    from qserve.version import __version__

    versions = {"qserve": __version__, "python": platform.python_version(), **Packages.installed().versions}
    command = without_secrets(["qserve", *sys.argv[1:]])
    about = {**asdict(hardware), "cpu": hardware.cpu.model_name}  # not its hundred flags
    run = NewRun(run_folder.name, command, versions, about, run_folder, os.environ.get(STARTED_BY, ""))
    return Recording(run_folder.parent.parent, run, Retention(keep_days, int(keep_gib * GIB)))
