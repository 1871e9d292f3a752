"""Ways to run a model on vLLM, best first: quantization, then tensor and pipeline parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import CpuFeatures, Device, Hardware
from qserve.core.model_spec import ModelSpec
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.tensors import Tensor
from qserve.engines.vllm.plan import schemes
from qserve.engines.vllm.plan.layouts import layouts, why_not_divisible
from qserve.engines.vllm.plan.options import VllmOptions
from qserve.engines.vllm.plan.versions import TESTED_RELEASE, VllmVersion
from qserve.errors import UsageError
from qserve.planner.candidate import Candidate
from qserve.planner.memory.resident_weights import single_scales, with_single_scales
from qserve.planner.request import PlanRequest
from qserve.planner.search.quantizations import Weights, dtype_of, nothing_runs, quantizations

__all__ = ["candidates"]


@dataclass(frozen=True)
class _Offer:
    """What a release of vLLM can do on the cards, or on the CPU."""

    devices: tuple[Device, ...]
    cpu: CpuFeatures
    version: VllmVersion
    name: str = VllmOptions.engine
    title: str = "vLLM"

    @property
    def device(self) -> Device:
        return self.devices[0]

    def loads(self, scheme: str) -> bool:
        return schemes.loads(scheme)

    def runs_stored(self, scheme: str) -> bool:
        return schemes.runs_stored(scheme, self.device, self.cpu)

    def online(self, scheme: str, spec: ModelSpec) -> CheckpointQuantization | None:
        """None of a model with tables of n-grams, which vLLM loads as they are stored or not at all.

        Source: vllm 0.32 models/qwen4_exp/common/ngram_embedding.py, from_quant_config.
        """
        return None if spec.ngrams else schemes.online_scheme(scheme, spec, self.devices, self.version)

    def details(self, scheme: str) -> Iterator[str]:
        return schemes.details(scheme, self.device)

    def pays(self, scheme: str) -> bool:
        return True

    def computes_in(self, scheme: str, dtype: str | None) -> bool:
        return schemes.computes_in(scheme, dtype)


def candidates(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> Iterator[Candidate]:
    """Candidates in the order in which they are preferred: best quantization first, then fewest cards.

    Raises UsageError where none runs.
    """
    devices = hardware.devices or (hardware.cpu_device,)
    release = request.engine_version or TESTED_RELEASE
    offer = _Offer(devices, hardware.cpu, VllmVersion.parse(release))
    found = False
    for weights in quantizations(checkpoint, request, offer):
        dtype = dtype_of(checkpoint.spec, weights, devices[0], request)
        pairs = [(1, 1)] if devices[0].kind == "cpu" else layouts(weights.spec, len(devices), request)
        for tensor_parallel, pipeline_parallel in pairs:
            found = True
            tensors, in_flight = _held(weights, offer.version)
            asked = _with_stored_cache(request, weights.spec, devices[0])
            yield Candidate(
                checkpoint=checkpoint,
                hardware=hardware,
                request=asked,
                engine=VllmOptions.engine,
                engine_version=release,
                quant=weights.quant,
                spec=weights.spec,
                tensors=tensors,
                in_flight=in_flight,
                dtype=dtype,
                devices=devices[: tensor_parallel * pipeline_parallel],
                tensor_parallel_size=tensor_parallel,
                pipeline_parallel_size=pipeline_parallel,
                kv_cache_dtype=asked.of(VllmOptions).kv_cache_dtype,
                parallelism=_parallelism(asked, tensor_parallel, pipeline_parallel),
                step_options=_step_options(asked),
            )
    if not found:
        raise UsageError(_why_none(checkpoint, request, offer))


def _held(weights: Weights, version: VllmVersion) -> tuple[tuple[Tensor, ...], CheckpointQuantization | None]:
    """The tensors to count and what is done to them while loading."""
    if not version.holds_single_scales:
        return weights.tensors, weights.in_flight
    return with_single_scales(weights.tensors), None if weights.in_flight is None else single_scales(weights.in_flight)


def _with_stored_cache(request: PlanRequest, spec: ModelSpec, device: Device) -> PlanRequest:
    """The request with the cache that the checkpoint asks for, as vLLM takes it. Source: resolve_kv_cache_dtype_string.

    Its calibrated scales are of no use to cards that read no fp8 cache.
    """
    stored, options = spec.quantization.kv_cache_dtype if spec.quantization else None, request.of(VllmOptions)
    is_able = device.compute_capability is None or device.compute_capability >= (8, 0)
    if stored is None or options.kv_cache_dtype != "auto" or not is_able or device.kind == "cpu":
        return request
    return request.with_options(replace(options, kv_cache_dtype=stored))


def _parallelism(request: PlanRequest, tensor_parallel: int, pipeline_parallel: int) -> str:
    """Over how many ranks the model lies, and adapters beside it."""
    ranks, adapters = f"tp {tensor_parallel} pp {pipeline_parallel}", request.of(VllmOptions).adapters
    return ranks if adapters is None else f"{ranks}, {adapters.max_loras} adapters of rank {adapters.max_rank}"


def _step_options(request: PlanRequest) -> tuple[str, ...]:
    options = request.of(VllmOptions)
    flags = (
        ("eager", options.enforce_eager),
        ("prompt logprobs", request.prompt_logprobs),
        ("language model only", options.language_model_only),
        (f"{options.num_drafted} drafted", options.num_drafted),
    )
    return tuple(name for name, is_set in flags if is_set)


def _why_none(checkpoint: Checkpoint, request: PlanRequest, offer: _Offer) -> str:
    """The size that the user fixed and that doesn't divide the model, or that no quantization runs."""
    # The weights that are tried first: a sibling's groups or blocks may be what doesn't divide.
    first = next(quantizations(checkpoint, request, offer), None)
    spec, options = first.spec if first else checkpoint.spec, request.of(VllmOptions)
    size, whole = options.tensor_parallel_size, options.enable_expert_parallel
    reason = why_not_divisible(spec, size or 1, request.engine_version, whole_experts=whole)
    if not reason:
        tested = replace(offer, version=VllmVersion.parse(TESTED_RELEASE))
        is_newer = next(quantizations(checkpoint, request, tested), None) is not None
        newer = f"; vllm {TESTED_RELEASE} does: leave out --engine-version {request.engine_version}" if is_newer else ""
        return f"{nothing_runs(checkpoint, request, offer)}{newer}"

    def divides(ranks: int, whole_experts: bool) -> bool:
        return not why_not_divisible(spec, ranks, request.engine_version, whole_experts=whole_experts)

    works = f"{spec.id} divides over {', '.join(str(ranks) for ranks in range(1, 17) if divides(ranks, whole))}"
    if not whole and size and divides(size, True):
        works += f"; with --enable-expert-parallel, which keeps experts whole, also over {size}"
    return f"--tensor-parallel-size {size}: {reason}; {works}"
