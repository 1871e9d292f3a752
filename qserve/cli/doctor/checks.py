"""The checks of `qserve doctor`: the machine, the engines, the packages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qserve.core.hardware import Hardware
from qserve.core.schemes import SCHEMES
from qserve.detect.compiler import INSTALL_COMPILER, compiler_command
from qserve.detect.engine_checks import engine_checks, why_not_scheme
from qserve.detect.packages import Packages
from qserve.engines.transformers.detect.attention import attention_kernels, attention_on_a_cpu, attention_remedy
from qserve.engines.transformers.detect.products import quantized_products
from qserve.engines.vllm.detect import (
    BNB_PLUGIN,
    downloads_kernels,
    install_plugin_command,
    lost_without_nvcc,
    takes_plugin,
)
from qserve.packages import install_command
from qserve.planner.engine import engine_named, own_engines
from qserve.units import GIB, format_bytes

__all__ = ["Check", "can_chat", "examine", "schemes_of"]

State = Literal["ok", "missing", "warning"]
_OWN = tuple(engine.name for engine in own_engines())
# CPU flags that the compiled kernels (`model/cpu/matrix.c`) and torch's matrix products use, as Linux names them.
_INSTRUCTIONS = (
    ("AVX2", "avx2"),
    ("AVX-VNNI", "avx_vnni"),
    ("AVX-512", "avx512f"),
    ("VNNI", "avx512_vnni"),
    ("bf16", "avx512_bf16"),
    ("AMX", "amx_bf16"),
)
# The demo model and its worker need less; real models need more.
_LEAST_RAM_BYTES = GIB
# One 8B model in 16 bit.
_USUAL_DISK_BYTES = 16 * GIB


@dataclass(frozen=True)
class Check:
    """One line of the report: what was checked, what was found, and how to install what is missing."""

    topic: str
    name: str
    state: State
    found: str
    remedy: str = ""


def examine(hardware: Hardware, packages: Packages, cache: Path, port: int, port_is_free: bool) -> list[Check]:
    """All checks, in the order of the report."""
    toolchain = [_toolchain(packages), _nvcc(hardware, packages)] if hardware.devices else []
    machine = _machine(hardware, cache, port, port_is_free)
    return [*machine, *toolchain, *_engines(hardware, packages), *_own_kernels(hardware, packages), *_extras(packages)]


def can_chat(hardware: Hardware, packages: Packages) -> bool:
    """Whether an engine is installed and there is enough memory to run it."""
    has_engine = any(check.state == "ok" for check in _engines(hardware, packages))
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
        *(cards or [Check("machine", "cards", "warning", "none with an NVIDIA driver", "models run on the CPU")]),
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
        return Check(
            "machine", "compiler", "warning", "none: bf16, int8 and 4 bit run much slower on the CPU", INSTALL_COMPILER
        )
    return Check("machine", "compiler", "ok", f"{found} (compiles the CPU kernels of bf16, int8 and 4 bit)")


def _toolchain(packages: Packages) -> Check:
    """The toolchain with which Triton compiles kernels when vLLM starts on a card."""
    if packages.lacking:
        found = "vLLM can't compile its kernels without " + " and ".join(packages.lacking)
        return Check("machine", "toolchain", "missing", found, "install it for vLLM")
    return Check("machine", "toolchain", "ok", "a C compiler and Python's headers: vLLM can compile its kernels")


def _nvcc(hardware: Hardware, packages: Packages) -> Check:
    """What compiles the kernels of FlashInfer and DeepGEMM, and what vLLM runs without on these cards."""
    if not packages.lacking_for_cuda:
        found = "nvcc, cuobjdump and ninja: vLLM can compile DeepGEMM's and FlashInfer's kernels, once, for minutes"
        return Check("machine", "nvcc", "ok", found)
    lost = lost_without_nvcc(tuple(device.compute_capability for device in hardware.devices))
    missing = " and no ".join(packages.lacking_for_cuda)
    fetched = " (or, for FlashInfer, `vllm download-kernels`)" if downloads_kernels(packages) else ""
    remedy = f"install NVIDIA's CUDA toolkit, name it in CUDA_HOME, and pip install ninja{fetched}"
    return Check("machine", "nvcc", "warning", f"no {missing}, so {'; '.join(lost)}", remedy)


def _cpu_formats(hardware: Hardware) -> str:
    flags = hardware.cpu.flags
    names = [name for name, flag in _INSTRUCTIONS if flag in flags]
    model = f" · {hardware.cpu.model_name}" if hardware.cpu.model_name else ""
    return model + (f" · {', '.join(names)}" if names else "")


def _engines(hardware: Hardware, packages: Packages) -> list[Check]:
    lines = []
    for name in _OWN:
        checks = engine_checks(name)
        reason = checks.why_not_installed(hardware, packages)
        state: State = "ok" if reason is None else "missing"
        lines.append(Check("engine", name, state, checks.installed(packages), reason or ""))
    return lines


def _own_kernels(hardware: Hardware, packages: Packages) -> list[Check]:
    """What the transformers engine will try: attention (for each kind of card), products by quantized weights."""
    if not hardware.devices:
        return [Check("engine", "attention", "ok", attention_on_a_cpu(compiler_command() is not None))]
    kinds = {device.name: device.compute_capability for device in hardware.devices}
    has_products = kinds and "bitsandbytes" in packages.versions
    products = [Check("engine", "int8, 4 bit", "ok", quantized_products(packages.versions))] if has_products else []
    return products + [
        Check(
            "engine",
            "attention",
            "ok",
            f"{name}: {attention_kernels(capability, packages.versions)}",
            attention_remedy(capability, packages.versions),
        )
        for name, capability in kinds.items()
    ]


def _extras(packages: Packages) -> list[Check]:
    plugin = (BNB_PLUGIN, "NF4 while loading, on vLLM", install_plugin_command(packages))
    wanted = (
        ("bitsandbytes", "LLM.int8 and NF4 while loading", install_command("bitsandbytes")),
        *([plugin] if takes_plugin(packages) else ()),
        ("gptqmodel", "GPTQ and AWQ on the transformers engine, on a card", install_command("gptqmodel")),
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


def schemes_of(hardware: Hardware, packages: Packages) -> dict[str, dict[str, str | None]]:
    """For each scheme that an engine knows, and engine, the reason why a checkpoint stored so does not run; None if it
    runs.
    """
    stored = [
        name
        for name, scheme in SCHEMES.items()
        if scheme.is_stored and any(engine_named(engine).planner.loads(name) for engine in _OWN)
    ]
    return {name: {engine: why_not_scheme(name, engine, hardware, packages) for engine in _OWN} for name in stored}
