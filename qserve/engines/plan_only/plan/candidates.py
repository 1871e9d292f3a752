"""Ways to hold a model on cards that are planned for only: their rows say in which quantizations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import CpuFeatures, Device, Hardware
from qserve.core.model_spec import ModelSpec
from qserve.core.plan_only import backend_of
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.schemes import SCHEMES, resolve_scheme
from qserve.errors import UsageError
from qserve.planner.candidate import Candidate
from qserve.planner.engine import PLAN_ONLY
from qserve.planner.plan import QuantChoice
from qserve.planner.request import PlanRequest
from qserve.planner.search.quantizations import dtype_of, quantizations

__all__ = ["candidates", "quantizes", "runs_stored"]

_RANKS = (1, 2, 4, 8)


def runs_stored(scheme: str, device: Device) -> bool:
    """Whether what serves on `device` loads a checkpoint that is stored so."""
    return scheme in device.schemes and SCHEMES[scheme].is_stored


def quantizes(scheme: str, device: Device) -> bool:
    """Whether what serves on `device` makes it of 16-bit weights."""
    return scheme in device.schemes and (SCHEMES[scheme].bits >= 16 or not SCHEMES[scheme].is_stored)


@dataclass(frozen=True)
class _Offer:
    """What serves on the card has of quantizations."""

    device: Device
    cpu: CpuFeatures
    name: str = PLAN_ONLY
    title: str = "what serves there"

    def loads(self, scheme: str) -> bool:
        return runs_stored(scheme, self.device)

    def runs_stored(self, scheme: str) -> bool:
        return runs_stored(scheme, self.device)

    def online(self, scheme: str, spec: ModelSpec) -> CheckpointQuantization | None:
        """Plain fp8 is the word of vLLM for scales per tensor."""
        made = "fp8_per_tensor" if scheme == "fp8" else scheme
        return SCHEMES[made].made if quantizes(made, self.device) else None

    def details(self, scheme: str) -> Iterator[str]:
        return iter(())

    def pays(self, scheme: str) -> bool:
        return True

    def computes_in(self, scheme: str, dtype: str | None) -> bool:
        return True


def candidates(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> Iterator[Candidate]:
    """The best quantization first, then fewest cards. Raises UsageError for what the card's row does not name."""
    device = hardware.devices[0]
    found = False
    for weights in quantizations(checkpoint, request, _Offer(device, hardware.cpu)):
        dtype = dtype_of(checkpoint.spec, weights, device, request)
        if dtype == "bfloat16" and not device.supports("bf16"):
            continue
        quant = _told(_in_dtype(weights.quant, dtype, device), device)
        for ranks in _ranks(checkpoint.spec, len(hardware.devices)):
            found = True
            yield Candidate(
                checkpoint=checkpoint,
                hardware=hardware,
                request=request,
                engine=PLAN_ONLY,
                engine_version="",
                quant=quant,
                spec=weights.spec,
                tensors=weights.tensors,
                in_flight=weights.in_flight,
                dtype=dtype,
                devices=hardware.devices[:ranks],
                tensor_parallel_size=ranks,
                parallelism=f"{ranks} cards, {quant.scheme}",
            )
    if not found:
        named = ", ".join(scheme for scheme in SCHEMES if scheme in device.schemes)
        asked = f"--quant {request.quant} ({', '.join(resolve_scheme(request.quant))})"
        raise UsageError(
            f"{asked} is not planned on {device.name}, nor is a checkpoint of it known; planned are {named}"
        )


def _in_dtype(quant: QuantChoice, dtype: str, device: Device) -> QuantChoice:
    """A model in 16 bit on a card without bf16 is one in fp16: no plan names what the card's row does not."""
    if SCHEMES[quant.scheme].bits < 16 or quant.scheme in device.schemes or dtype != "float16":
        return quant
    return replace(quant, scheme="fp16", reason=f"{device.name} has no bf16, so it is computed in fp16")


def _told(quant: QuantChoice, device: Device) -> QuantChoice:
    """Which engine there quantizes: those of Apple's chips do not while loading, their format is made before."""
    if not quant.in_flight:
        return quant
    scheme, serves = SCHEMES[quant.scheme], backend_of(device.kind).serves
    if scheme.scales:
        return replace(quant, reason=f"made while loading, {scheme.scales}")
    return replace(quant, reason=f"{scheme.bits} bit in groups of 64, converted for {serves}")


def _ranks(spec: ModelSpec, count: int) -> Iterator[int]:
    """Cards that share the heads evenly."""
    return (ranks for ranks in _RANKS if ranks <= count and spec.num_attention_heads % ranks == 0)
