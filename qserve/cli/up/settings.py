"""From the flags of `qserve up` to the settings of gateway, files and service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qserve.batches import FileBounds
from qserve.cli.up.recording import recording_of
from qserve.core.hardware import Hardware
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.telemetry.tracing import NoTraces, to_collector
from qserve.supervisor import UpOptions, ports
from qserve.supervisor.gateways.running import Processes
from qserve.supervisor.keys import keys_in_use, keys_of_file
from qserve.units import GIB, MIB

__all__ = ["gateway_of", "processes_of", "up_options"]

_DAY_S = 24 * 3600


def gateway_of(values: dict[str, Any]) -> GatewaySettings:
    """The gateway's settings. Keys are read once and kept in this process. Raises UsageError if one is needed."""
    keys, host = keys_in_use(values["api_key"], values["api_key_file"]), values["host"]
    ports.check_exposure(host, keys)
    admin_keys = (key for file in values["admin_key_file"] for key in keys_of_file(file, "--admin-key-file"))
    return GatewaySettings(
        keys=keys,
        admin_keys=tuple(admin_keys),
        cors_origins=values["cors_origin"],
        allowed_hosts=() if keys else ("localhost", "127.0.0.1", "[::1]", host),
        shared_prefix_cache=values["shared_prefix_cache"],
        max_queue=values["max_queue"],
        max_body_bytes=values["max_body_mib"] * MIB,
    )


def processes_of(values: dict[str, Any]) -> Processes:
    """The gateway processes. Raises UsageError for a malformed address of a trace collector."""
    collector = values["otlp_traces_endpoint"]
    traces = to_collector(collector) if collector else NoTraces()
    return Processes(values["gateway_processes"], values["log_level"], values["log_format"], traces, collector)


def up_options(
    values: dict[str, Any], gateway: GatewaySettings, processes: Processes, hardware: Hardware, run_folder: Path
) -> UpOptions:
    """The service's options. Raises UsageError for bounds of the record that make no sense."""
    recording = recording_of(run_folder, hardware, values["keep_runs_days"], values["keep_runs_gib"])
    state = run_folder.parent.parent
    return UpOptions(
        values["host"], values["port"], gateway, values["drain_timeout"], run_folder, values["ready_file"], processes,
        values["ui"], recording, values["strict"], values["start_timeout"], hardware.host, state / "files",
        _file_bounds(values),
    )  # fmt: skip


def _file_bounds(values: dict[str, Any]) -> FileBounds:
    keep_s = max(1, int(values["keep_files_days"] * _DAY_S))
    return FileBounds(values["max_file_mib"] * MIB, int(values["keep_files_gib"] * GIB), keep_s)
