"""`qserve doctor`: what this machine can run, and which command installs the rest."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from qserve.cli.doctor.checks import Check, can_chat, examine, schemes_of
from qserve.cli.options.command import Command
from qserve.core.hardware import Hardware
from qserve.detect.engine_checks import engine_checks
from qserve.detect.packages import Packages
from qserve.errors import UsageError

__all__ = ["command", "hub_cache"]


@click.command("doctor", cls=Command)
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="Port to check.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--measure", is_flag=True, help="Measure this CPU for the speeds in `qserve plan` (takes seconds).")
@click.option("--kernels", is_flag=True, help="Try the engine's kernels on each card (takes about a minute).")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    envvar="QSERVE_STATE_DIR",
    help="Folder of the runs and measurements [~/.local/state/qserve].",
)
def command(port: int, as_json: bool, measure: bool, kernels: bool, state_dir: Path | None) -> None:
    """Show what this machine can run, and how to install the rest.

    \b
    qserve doctor
    qserve doctor --json

    Exit status: 0 chat can be served here, 1 it can't.
    """
    from qserve.detect import detect

    cache = hub_cache()
    hardware, packages = detect(cache), Packages.installed()
    checks = examine(hardware, packages, cache, port, _is_free(port))
    checks += _kernels(state_dir, hardware, packages, kernels)
    if measure:
        checks.append(_measured(state_dir, hardware))
    serves = can_chat(hardware, packages)
    if as_json:
        click.echo(json.dumps(_document(hardware, packages, checks, serves), indent=2))
    else:
        from qserve.cli.doctor.show import show_doctor

        show_doctor(checks, schemes_of(hardware, packages), hardware, serves)
    sys.exit(0 if serves else 1)


def _kernels(state_dir: Path | None, hardware: Hardware, packages: Packages, is_wanted: bool) -> list[Check]:
    """Of the own engine on this machine's cards; nothing where it has none. Raises UsageError for --kernels there."""
    missing = engine_checks("transformers").why_not_installed(hardware, packages)
    why_not = missing if hardware.devices else "this machine has none with an NVIDIA driver; leave it out"
    if why_not is not None:
        if is_wanted:
            raise UsageError(f"--kernels tries the transformers engine's kernels on a card: {why_not}")
        return []
    from qserve.cli.doctor.kernels import as_last_start_told, tried_now
    from qserve.state_folder import state_folder

    return tried_now() if is_wanted else as_last_start_told(state_folder(state_dir))


def _measured(state_dir: Path | None, hardware: Hardware) -> Check:
    from qserve.service.measured_speed import measure_cpu
    from qserve.state_folder import state_folder

    rates = measure_cpu(state_folder(state_dir), hardware)
    found = f"reads {rates.read_bytes_per_s / 1e9:.1f} GB/s, multiplies {rates.gemm_flop_per_s / 1e9:.0f} GFLOP/s"
    return Check("machine", "CPU, measured", "ok", f"{found}; `qserve plan` uses it")


def _document(hardware: Hardware, packages: Packages, checks: list[Check], serves: bool) -> dict[str, Any]:
    return {
        "serves_chat": serves,
        "checks": [asdict(check) for check in checks],
        "schemes": schemes_of(hardware, packages),
        "packages": packages.versions,
        "notes": list(hardware.notes),
    }


def hub_cache() -> Path:
    """The folder of the Hugging Face cache, found as huggingface_hub does."""
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
