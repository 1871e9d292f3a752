"""`qserve doctor`: what this machine can run, and which command installs the rest."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import click

from qserve.core.hardware import Hardware
from qserve.core.quantization import SCHEMES
from qserve.detect.engines import (
    BNB_PLUGIN,
    Packages,
    install_plugin_command,
    why_not_installed,
    why_not_scheme,
)
from qserve.engine.cpu.build import INSTALL, compiler_command
from qserve.packages import SERVE_PACKAGES, install_command
from qserve.units import GIB, format_bytes

__all__ = ["Check", "command", "examine"]

State = Literal["ok", "missing", "warning"]
_ENGINES = ("vllm", "transformers")
# The demo model and its worker need less; anything that people ask for needs more.
_LEAST_RAM_BYTES = GIB
# One 8B model in 16 bit.
_USUAL_DISK_BYTES = 16 * GIB


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, what was found, and what to do where something is missing."""

    topic: str
    name: str
    state: State
    found: str
    remedy: str = ""


@click.command("doctor")
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="The port to look at.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--measure", is_flag=True, help="Measure this CPU (seconds), for what `qserve plan` says of its speed.")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    envvar="QSERVE_STATE_DIR",
    help="Where what was measured is kept [~/.local/state/qserve].",
)
def command(port: int, as_json: bool, measure: bool, state_dir: Path | None) -> None:
    """What this machine can run, and which command installs the rest.

    \b
    qserve doctor
    qserve doctor --json

    Exit status: 0 chat can be served here, 1 it can't.
    """
    from qserve.detect import detect

    cache = _hub_cache()
    hardware, packages = detect(cache), Packages.installed()
    checks = examine(hardware, packages, cache, port, _is_free(port))
    if measure:
        checks.append(_measured(state_dir, hardware))
    serves = can_chat(hardware, packages)
    if as_json:
        click.echo(json.dumps(_document(hardware, packages, checks, serves), indent=2))
    else:
        from qserve.cli.show_doctor import show_doctor

        show_doctor(checks, _schemes(hardware, packages), hardware, serves)
    sys.exit(0 if serves else 1)


def examine(hardware: Hardware, packages: Packages, cache: Path, port: int, port_is_free: bool) -> list[Check]:
    """Every line of the report, in its order."""
    toolchain = [_toolchain(packages)] if hardware.devices else []
    machine = _machine(hardware, cache, port, port_is_free)
    return [*machine, *toolchain, *_engines(hardware, packages), *_extras(packages)]


def _measured(state_dir: Path | None, hardware: Hardware) -> Check:
    from qserve.cli.measured import measure_cpu
    from qserve.cli.state import state_folder

    rates = measure_cpu(state_folder(state_dir), hardware)
    found = f"reads {rates.read_bytes_per_s / 1e9:.1f} GB/s, multiplies {rates.gemm_flop_per_s / 1e9:.0f} GFLOP/s"
    return Check("machine", "CPU, measured", "ok", f"{found}; `qserve plan` counts with it")


def can_chat(hardware: Hardware, packages: Packages) -> bool:
    """Whether one engine is there with memory to run in."""
    has_engine = why_not_installed(hardware, packages) is None or _has_transformers(packages)
    return has_engine and hardware.ram_available_bytes >= _LEAST_RAM_BYTES


def _machine(hardware: Hardware, cache: Path, port: int, port_is_free: bool) -> list[Check]:
    cards = [
        Check(
            "machine",
            f"card {number}",
            "ok",
            f"{device.name} · {format_bytes(device.available_bytes)} free of {format_bytes(device.total_bytes)}"
            + (
                f" · compute capability {'.'.join(map(str, device.compute_capability))}"
                if device.compute_capability
                else ""
            ),
        )
        for number, device in enumerate(hardware.devices)
    ]
    ram, disk = hardware.ram_available_bytes, hardware.disk_free_bytes
    return [
        *(
            cards
            or [Check("machine", "cards", "warning", "none with an NVIDIA driver", "models run on the CPU, slowly")]
        ),
        Check(
            "machine",
            "RAM",
            "ok" if ram >= _LEAST_RAM_BYTES else "missing",
            f"{format_bytes(ram)} available of {format_bytes(hardware.ram_total_bytes)}",
            "" if ram >= _LEAST_RAM_BYTES else "end other programs",
        ),
        Check("machine", "CPU", "ok", f"{hardware.cpu_cores} cores" + _cpu_formats(hardware)),
        *([] if cards else [_compiler()]),
        Check(
            "machine",
            "disk",
            "ok" if disk >= _USUAL_DISK_BYTES else "warning",
            f"{format_bytes(disk)} free for models in {cache}",
            "" if disk >= _USUAL_DISK_BYTES else "HF_HOME=/larger/disk moves the models",
        ),
        Check(
            "machine",
            f"port {port}",
            "ok" if port_is_free else "warning",
            "free" if port_is_free else "in use",
            "" if port_is_free else "qserve up --port 0 takes a free one",
        ),
    ]


def _compiler() -> Check:
    found = compiler_command()
    if found is None:
        return Check("machine", "compiler", "warning", "none: bf16 runs at half of its speed on the CPU", INSTALL)
    return Check("machine", "compiler", "ok", f"{found}, for kernels that bf16 takes on the CPU")


def _toolchain(packages: Packages) -> Check:
    """What Triton compiles with when vLLM starts on a card."""
    if packages.lacking:
        found = "vLLM can't compile its kernels: there is not " + ", nor ".join(packages.lacking)
        return Check("machine", "toolchain", "missing", found, "install it, then vLLM starts on the card")
    return Check("machine", "toolchain", "ok", "a C compiler and Python's headers, for the kernels that vLLM compiles")


def _cpu_formats(hardware: Hardware) -> str:
    flags = hardware.cpu.flags
    names = [
        name for name, flag in (("AVX-512", "avx512f"), ("bf16", "avx512_bf16"), ("AMX", "amx_bf16")) if flag in flags
    ]
    model = f" · {hardware.cpu.model_name}" if hardware.cpu.model_name else ""
    return model + (f" · {', '.join(names)}" if names else "")


def _engines(hardware: Hardware, packages: Packages) -> list[Check]:
    versions, reason = packages.versions, why_not_installed(hardware, packages)
    vllm = (
        f"{packages.vllm}, {'CPU' if packages.vllm_is_for_cpu else 'CUDA'} build" if packages.vllm else "not installed"
    )
    has_transformers = _has_transformers(packages)
    return [
        Check("engine", "vllm", "ok" if reason is None else "missing", vllm, reason or ""),
        Check(
            "engine",
            "transformers",
            "ok" if has_transformers else "missing",
            f"{versions.get('transformers', 'not installed')}, torch {versions.get('torch', 'not installed')}",
            "" if has_transformers else install_command(*SERVE_PACKAGES),
        ),
    ]


def _has_transformers(packages: Packages) -> bool:
    return {"torch", "transformers", "accelerate"} <= set(packages.versions)


def _extras(packages: Packages) -> list[Check]:
    wanted = (
        ("bitsandbytes", "LLM.int8 and NF4 while loading", install_command("bitsandbytes")),
        (BNB_PLUGIN, "NF4 while loading, on vLLM", install_plugin_command(packages)),
        ("gptqmodel", "GPTQ and AWQ on the transformers engine", install_command("gptqmodel")),
        ("lm-eval", "qserve eval", install_command("lm-eval")),
        ("gradio", "the web UI", install_command("gradio")),
        ("openai", "the client that benchmarks use", install_command("openai")),
    )
    return [
        Check("extra", name, "ok", packages.versions[name], use)
        if name in packages.versions
        else Check("extra", name, "missing", "not installed", f"{use}: {remedy}")
        for name, use, remedy in wanted
    ]


def _schemes(hardware: Hardware, packages: Packages) -> dict[str, dict[str, str | None]]:
    """Scheme to engine to the reason why a checkpoint stored so does not run there; None where it does."""
    stored = [name for name, scheme in SCHEMES.items() if scheme.is_stored]
    return {name: {engine: why_not_scheme(name, engine, hardware, packages) for engine in _ENGINES} for name in stored}


def _document(hardware: Hardware, packages: Packages, checks: list[Check], serves: bool) -> dict[str, Any]:
    return {
        "serves_chat": serves,
        "checks": [asdict(check) for check in checks],
        "schemes": _schemes(hardware, packages),
        "packages": packages.versions,
        "notes": list(hardware.notes),
    }


def _hub_cache() -> Path:
    """Where models from the hub are kept, as huggingface_hub decides it."""
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
