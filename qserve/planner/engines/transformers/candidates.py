"""Ways to run a model on the transformers engine: quantizations, over all devices at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import CpuFeatures, Device, Hardware
from qserve.core.model_spec import ModelSpec
from qserve.core.quantization import CheckpointQuantization
from qserve.errors import UsageError
from qserve.planner.engines.transformers import schemes
from qserve.planner.engines.transformers.constants import TESTED_RELEASE
from qserve.planner.engines.transformers.options import TransformersOptions
from qserve.planner.engines.transformers.packages import lacking
from qserve.planner.memory.held import held_quantization, held_tensors
from qserve.planner.request import PlanRequest
from qserve.planner.search.quantizations import dtype_of, nothing_runs, quantizations
from qserve.planner.setup import Setup

__all__ = ["candidates"]


@dataclass(frozen=True)
class _Offer:
    """What it can do on a card, or on the CPU."""

    device: Device
    hardware: Hardware
    name: str = TransformersOptions.engine
    title: str = "the transformers engine"

    @property
    def cpu(self) -> CpuFeatures:
        return self.hardware.cpu

    def loads(self, scheme: str) -> bool:
        return schemes.loads(scheme)

    def runs_stored(self, scheme: str) -> bool:
        return True

    def online(self, scheme: str, spec: ModelSpec) -> CheckpointQuantization | None:
        return schemes.online_scheme(scheme)

    def details(self, scheme: str) -> Iterator[str]:
        return iter(())

    def pays(self, scheme: str) -> bool:
        """A word takes what runs with the packages that are there; bitsandbytes' schemes name what they lack."""
        is_there = scheme.startswith("bnb") or not lacking(scheme, self.hardware)
        return is_there and schemes.pays(scheme, self.device)

    def computes_in(self, scheme: str, dtype: str | None) -> bool:
        return True


def candidates(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> Iterator[Setup]:
    """Setups in the order in which they are preferred. Raises UsageError where none runs."""
    devices = hardware.devices or (hardware.cpu_device,)
    offer = _Offer(devices[0], hardware)
    has_fp8_kernels = not lacking("fp8", hardware)
    found = False
    for weights in quantizations(checkpoint, request, offer):
        found = True
        dtype = dtype_of(checkpoint.spec, weights, devices[0], request)
        in_flight = weights.in_flight
        yield Setup(
            checkpoint=checkpoint,
            hardware=hardware,
            request=request,
            engine=TransformersOptions.engine,
            engine_version=request.engine_version or TESTED_RELEASE,
            quant=weights.quant,
            spec=weights.spec,
            tensors=held_tensors(weights.spec, weights.tensors, devices[0], has_fp8_kernels),
            in_flight=None if in_flight is None else held_quantization(in_flight, dtype, devices[0]),
            dtype=dtype,
            devices=devices,
            spread=f"{len(devices)} devices",
            step_options=("prompt logprobs",) if request.prompt_logprobs else (),
        )
    if not found:
        raise UsageError(nothing_runs(checkpoint, request, offer))
