"""Ways to run a model on the transformers engine: quantizations, over all devices at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import CpuFeatures, Device, Hardware
from qserve.core.model_spec import ModelSpec
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.release import parse_release
from qserve.core.schemes import SCHEMES
from qserve.core.tensors import Tensor
from qserve.engines.transformers.plan import schemes
from qserve.engines.transformers.plan.activations import activations_of
from qserve.engines.transformers.plan.constants import TESTED_RELEASE
from qserve.engines.transformers.plan.options import TransformersOptions
from qserve.engines.transformers.plan.packages import lacking
from qserve.engines.transformers.plan.releases import POOL_SINCE
from qserve.errors import UsageError
from qserve.planner.candidate import Candidate
from qserve.planner.memory.resident_weights import resident_quantization, resident_tensors, without_mapped_embedding
from qserve.planner.request import PlanRequest
from qserve.planner.search.quantizations import Weights, dtype_of, nothing_runs, quantizations

__all__ = ["candidates"]


@dataclass(frozen=True)
class _Offer:
    """What it can do on a card, or on the CPU."""

    device: Device
    hardware: Hardware
    release: tuple[int, ...]
    name: str = TransformersOptions.engine
    title: str = "the transformers engine"

    @property
    def cpu(self) -> CpuFeatures:
        return self.hardware.cpu

    def loads(self, scheme: str) -> bool:
        return schemes.loads(scheme)

    def runs_stored(self, scheme: str) -> bool:
        return schemes.runs_stored(scheme, self._devices)

    def online(self, scheme: str, spec: ModelSpec) -> CheckpointQuantization | None:
        if self._is_held_by_later(scheme):
            return None
        return schemes.online_scheme(scheme, self._devices) if self._has_kernels(scheme) else None

    def _is_held_by_later(self, scheme: str) -> bool:
        """Whether workers of ours make and multiply by it, and the library of this release did not, or slowly."""
        return self.release < POOL_SINCE and schemes.holds_fp8(scheme, self._devices)

    def _has_kernels(self, scheme: str) -> bool:
        return schemes.has_kernels(scheme, self._devices)

    @property
    def _devices(self) -> tuple[Device, ...]:
        return self.hardware.devices or (self.device,)

    def details(self, scheme: str) -> Iterator[str]:
        return iter(())

    def pays(self, scheme: str) -> bool:
        """A word takes what runs with the packages that are there; bitsandbytes' schemes name what they lack."""
        if self.device.kind == "cpu" and SCHEMES[scheme].in_panels:
            return True
        if self._is_held_by_later(scheme):
            return False
        is_there = SCHEMES[scheme].by_bitsandbytes or not lacking(scheme, self.hardware)
        return is_there and self._has_kernels(scheme) and schemes.pays(scheme, self.device)

    def computes_in(self, scheme: str, dtype: str | None) -> bool:
        return True


def candidates(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> Iterator[Candidate]:
    """Candidates in the order in which they are preferred. Raises UsageError where none runs."""
    devices = hardware.devices or (hardware.cpu_device,)
    offer = _Offer(devices[0], hardware, parse_release(request.engine_version or TESTED_RELEASE))
    found = False
    for weights in quantizations(checkpoint, request, offer):
        found = True
        dtype = _dtype(checkpoint.spec, weights, devices[0], request)
        in_flight = weights.in_flight
        asked = request.of(TransformersOptions).cpu_activations
        activations = activations_of(asked, _schemes(weights), dtype, devices[0], hardware.cpu)
        yield Candidate(
            checkpoint=checkpoint,
            hardware=hardware,
            request=request,
            engine=TransformersOptions.engine,
            engine_version=request.engine_version or TESTED_RELEASE,
            quant=weights.quant,
            spec=weights.spec,
            tensors=_in_memory(checkpoint, weights, devices[0], dtype),
            in_flight=None if in_flight is None else resident_quantization(in_flight, dtype, devices[0]),
            dtype=dtype,
            devices=devices,
            parallelism=f"{len(devices)} devices",
            step_options=("prompt logprobs",) if request.prompt_logprobs else (),
            cpu_activations=activations,
        )
    if not found:
        raise UsageError(nothing_runs(checkpoint, request, offer))


def _in_memory(checkpoint: Checkpoint, weights: Weights, device: Device, dtype: str) -> tuple[Tensor, ...]:
    """What lies in memory after loading. What was never told by a file (--load-format dummy) has none to stay in."""
    held = resident_tensors(weights.spec, weights.tensors, device, dtype)
    if device.kind != "cpu" or checkpoint.tensors is None:
        return held
    return without_mapped_embedding(weights.spec, held, weights.tensors, dtype)


def _schemes(weights: Weights) -> frozenset[str]:
    """Of all modules: by its own name, and as a checkpoint stores some of them otherwise."""
    stored = weights.spec.quantization
    return frozenset({weights.quant.scheme}) | (stored.schemes if stored is not None else frozenset())


def _dtype(spec: ModelSpec, weights: Weights, device: Device, request: PlanRequest) -> str:
    """On a CPU, weights that are read as they are stored are multiplied in bf16; most such checkpoints say float16."""
    dtype = dtype_of(spec, weights, device, request)
    as_stored = device.kind == "cpu" and not weights.quant.in_flight and SCHEMES[weights.quant.scheme].in_panels
    return "bfloat16" if as_stored and dtype == "float16" and request.dtype in (None, "auto") else dtype
