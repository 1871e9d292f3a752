"""Which ways of running a model are worth counting, best first: quantization, engine, layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from qserve.core.checkpoint import Checkpoint
from qserve.core.dimensions import tensors_of
from qserve.core.hardware import CpuFeatures, Device, Hardware
from qserve.core.model_spec import ModelSpec
from qserve.core.quantization import FAMILIES, SCHEMES, CheckpointQuantization, Engine, resolve_scheme
from qserve.core.tensors import Tensor
from qserve.errors import UsageError
from qserve.planner.engines.vllm import constants
from qserve.planner.engines.vllm.adapters import refuse_adapters
from qserve.planner.engines.vllm.layouts import layouts, why_not_divisible
from qserve.planner.engines.vllm.online import online_scheme, runs_stored, why_online
from qserve.planner.engines.vllm.versions import VllmVersion, check_knows, check_transformers
from qserve.planner.memory.held import held_quantization, held_tensors, single_scales, with_single_scales
from qserve.planner.plan import QuantChoice
from qserve.planner.request import PlanRequest
from qserve.planner.setup import Setup
from qserve.planner.siblings import padded_size, sibling_of

__all__ = ["candidates"]

_SCHEME_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True)
class _Weights:
    """One quantization of the model: what to load, what to do with it in flight."""

    quant: QuantChoice
    spec: ModelSpec
    tensors: tuple[Tensor, ...]
    in_flight: CheckpointQuantization | None = None


@dataclass(frozen=True)
class _Place:
    """Where the model is to run, and on what."""

    engine: Engine
    engine_version: str
    devices: tuple[Device, ...]
    cpu: CpuFeatures

    def runs_stored(self, scheme: str) -> bool:
        return self.engine in SCHEMES[scheme].engines and runs_stored(scheme, self.devices[0], self.cpu, self.engine)

    def online(self, scheme: str, spec: ModelSpec) -> CheckpointQuantization | None:
        return online_scheme(scheme, spec, self.devices, self.engine, self.engine_version)


def candidates(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> Iterator[Setup]:
    """Setups in the order in which they are preferred: best quantization first, then fewest cards.

    Raises UsageError where the request asks for what no engine does.
    """
    engine = _engine(hardware, request)
    devices = hardware.devices or (hardware.cpu_device,)
    _refuse_what_nobody_reads(checkpoint, request, engine, devices)
    if engine == "transformers" and not request.engine_version:
        request = replace(request, engine_version=constants.TRANSFORMERS_VERSION)
    version = request.engine_version or constants.VLLM_VERSION
    if engine == "transformers":
        check_transformers(version)
    else:
        check_knows(checkpoint.spec.architecture, version)
    found = False
    place = _Place(engine, version, devices, hardware.cpu)
    for weights in _quantizations(checkpoint, request, place):
        dtype = _dtype(checkpoint.spec, weights, devices[0], request)
        for tensor_parallel, pipeline_parallel in _layouts(weights.spec, devices, request, engine):
            found = True
            tensors, in_flight = _held(weights, dtype, place)
            ranks = len(devices) if engine == "transformers" else tensor_parallel * pipeline_parallel
            asked = request if engine == "transformers" else _with_stored_cache(request, weights.spec, devices[0])
            yield Setup(
                checkpoint=checkpoint,
                hardware=hardware,
                request=asked,
                engine=engine,
                engine_version=version,
                quant=weights.quant,
                spec=weights.spec,
                tensors=tensors,
                in_flight=in_flight,
                dtype=dtype,
                devices=devices[:ranks],
                tensor_parallel_size=tensor_parallel,
                pipeline_parallel_size=pipeline_parallel,
            )
    if not found:
        raise UsageError(_nothing_runs(checkpoint, request, place))


def _with_stored_cache(request: PlanRequest, spec: ModelSpec, device: Device) -> PlanRequest:
    """The request with the cache that the checkpoint asks for, as vLLM takes it. Source: resolve_kv_cache_dtype_string.

    Its calibrated scales are of no use to cards that read no fp8 cache.
    """
    stored = spec.quantization.kv_cache_dtype if spec.quantization else None
    is_able = device.compute_capability is None or device.compute_capability >= (8, 0)
    if stored is None or request.kv_cache_dtype != "auto" or not is_able or device.kind == "cpu":
        return request
    return replace(request, kv_cache_dtype=stored)


def _refuse_what_no_attention_reads(request: PlanRequest, device: Device) -> None:
    """Source: vllm 0.32, FlashInfer from 8.0 on and Triton from 8.9 on read a cache in fp8."""
    capability = device.compute_capability
    if request.kv_cache_dtype.startswith("fp8") and capability is not None and capability < (8, 0):
        raise UsageError(f"--kv-cache-dtype {request.kv_cache_dtype}: {device.name} has no attention kernel for it")


def _refuse_what_nobody_reads(
    checkpoint: Checkpoint, request: PlanRequest, engine: Engine, devices: tuple[Device, ...]
) -> None:
    unread = request.only_vllm_reads() if engine == "transformers" else ()
    if unread:
        raise UsageError(
            f"{', '.join(unread)}: vLLM's alone, and this plan is for the transformers engine; "
            "leave it out, or give --engine vllm"
        )
    unread = request.only_transformers_reads() if engine == "vllm" else ()
    if unread:
        raise UsageError(
            f"{', '.join(unread)}: the transformers engine's alone, and this plan is for vLLM; "
            "leave it out, or give --engine transformers"
        )
    positions = checkpoint.spec.max_position_embeddings
    if request.max_model_len is not None and request.max_model_len > positions:
        raise UsageError(
            f"--max-model-len {request.max_model_len}: {checkpoint.id} has {positions} positions; give that or less (a "
            "longer context needs YaRN: --hf-overrides, or rope_parameters in its config.json)"
        )
    if request.block_size is not None and request.block_size % 16:
        raise UsageError(f"--block-size {request.block_size}: vLLM's attention takes multiples of 16")
    seqs, batched = request.max_num_seqs, request.max_num_batched_tokens
    if engine == "vllm" and seqs is not None and batched is not None and batched < seqs:
        raise UsageError(
            f"--max-num-batched-tokens {batched} is less than --max-num-seqs {seqs}: a step of vLLM holds a token of "
            "every sequence; raise the first or lower the second"
        )
    if engine == "vllm":
        _refuse_what_no_attention_reads(request, devices[0])
        if request.adapters is not None:
            version = VllmVersion.parse(request.engine_version or constants.VLLM_VERSION)
            refuse_adapters(checkpoint.spec, request.adapters, version, request.tensor_parallel_size or 1)
    if request.num_speculative_tokens and not checkpoint.spec.mtp_layers:
        raise UsageError(
            f"--num-speculative-tokens {request.num_speculative_tokens}: {checkpoint.id} has no MTP head to draft "
            "with; leave it out"
        )


def _engine(hardware: Hardware, request: PlanRequest) -> Engine:
    if request.engine is not None:
        return request.engine
    return "vllm" if hardware.devices and not request.only_transformers_reads() else "transformers"


def _layouts(
    spec: ModelSpec, devices: tuple[Device, ...], request: PlanRequest, engine: Engine
) -> Iterator[tuple[int, int]]:
    if engine == "transformers" or devices[0].kind == "cpu":
        yield 1, 1
    else:
        yield from layouts(spec, len(devices), request)


def _quantizations(checkpoint: Checkpoint, request: PlanRequest, place: _Place) -> Iterator[_Weights]:
    allowed = resolve_scheme(request.quant)
    stored = checkpoint.spec.quantization
    if stored is not None:
        if request.quant != "auto" and stored.scheme not in allowed and not _same_family(stored.scheme, request.quant):
            raise UsageError(
                f"{checkpoint.id} is stored as {stored.scheme}, and --quant {request.quant} can't requantize it; "
                f"leave --quant out, or name the 16-bit model"
            )
        if not runs_stored(stored.scheme, place.devices[0], place.cpu, place.engine):
            where = "on this CPU" if place.devices[0].kind == "cpu" else f"for {place.devices[0].name}"
            raise UsageError(
                f"{checkpoint.id} is stored as {stored.scheme}, and vLLM has no kernels for that {where}; "
                "use --engine transformers, or name the 16-bit model"
            )
        quant = QuantChoice(stored.scheme, checkpoint.id, reason=f"the checkpoint is stored as {_in_words(stored)}")
        yield _Weights(quant, checkpoint.spec, checkpoint.counted_tensors)
        return
    for scheme in allowed:
        is_named = request.quant == scheme and place.devices[0].kind != "cpu"
        if request.quant in FAMILIES and not is_named and not _pays(scheme, place.devices[0], place.engine):
            continue
        if place.engine == "vllm" and not _computes_in(scheme, request.dtype):
            continue
        weights = _quantized(checkpoint, scheme, place)
        if weights is not None:
            yield weights


def _in_words(stored: CheckpointQuantization) -> str:
    """The scheme, and those of the modules that are stored otherwise."""
    others = dict.fromkeys(other.scheme for _, other in stored.overrides if other.scheme != stored.scheme)
    return f"{stored.scheme}, parts of it as {', '.join(others)}" if others else stored.scheme


def _quantized(checkpoint: Checkpoint, scheme: str, place: _Place) -> _Weights | None:
    """`scheme` from the checkpoint itself, from a sibling, or in flight; None where none of them runs there."""
    if SCHEMES[scheme].bits >= 16:
        quant = QuantChoice(scheme, checkpoint.id, reason="as it was trained: nothing is lost")
        return _Weights(quant, checkpoint.spec, checkpoint.counted_tensors)
    sibling = sibling_of(checkpoint.id, scheme)
    stored = _stored_as(scheme)
    if sibling is not None and stored is not None and place.runs_stored(scheme):
        columns = padded_size(sibling) or checkpoint.spec.intermediate_size
        spec = replace(checkpoint.spec, quantization=stored, id=sibling, intermediate_size=columns)
        reason = f"{sibling} was quantized with calibration data, which is better than quantizing while loading"
        return _Weights(QuantChoice(scheme, sibling, reason=reason), spec, tensors_of(spec))
    online = place.online(scheme, checkpoint.spec)
    if online is not None:
        reason = why_online(online.scheme, scheme, checkpoint.id, place.devices[0], place.engine)
        quant = QuantChoice(online.scheme, checkpoint.id, in_flight=True, reason=reason)
        return _Weights(quant, checkpoint.spec, checkpoint.counted_tensors, online)
    return None


def _stored_as(scheme: str) -> CheckpointQuantization | None:
    """How official siblings store a scheme."""
    table = {
        "awq": CheckpointQuantization("awq", 4, group_size=128),
        "gptq-int4": CheckpointQuantization("gptq-int4", 4, group_size=128, symmetric=True),
        "gptq-int8": CheckpointQuantization("gptq-int8", 8, group_size=128, symmetric=True),
        "fp8": CheckpointQuantization("fp8", 8, block=128, symmetric=True),
        "w8a8": CheckpointQuantization("w8a8", 8, symmetric=True),
        "bnb-nf4": CheckpointQuantization("bnb-nf4", 4, 64, double_quant=True),
    }
    return table.get(scheme)


def _held(weights: _Weights, dtype: str, place: _Place) -> tuple[tuple[Tensor, ...], CheckpointQuantization | None]:
    """The tensors to count and what is done to them while loading; no engine keeps every format as it is."""
    in_flight, device = weights.in_flight, place.devices[0]
    if place.engine == "transformers":
        held = None if in_flight is None else held_quantization(in_flight, dtype, device)
        return held_tensors(weights.spec, weights.tensors, device), held
    if not VllmVersion.parse(place.engine_version).holds_single_scales:
        return weights.tensors, in_flight
    return with_single_scales(weights.tensors), None if in_flight is None else single_scales(in_flight)


def _pays(scheme: str, device: Device, engine: Engine) -> bool:
    """Whether a word like `auto` or `4bit` may mean this scheme here; an exact scheme is taken at its word.

    fp8 needs Ampere's weight-only kernels at least; transformers on a CPU has kernels for bitsandbytes alone.
    """
    if device.kind == "cpu" and engine == "transformers":
        return SCHEMES[scheme].bits >= 16 or scheme.startswith("bnb")
    if scheme == "fp8":
        return device.supports("fp8") or (device.compute_capability or (0, 0)) >= (8, 0)
    return True


def _computes_in(scheme: str, dtype: str | None) -> bool:
    """vLLM's quantized kernels compute in 16 bit; only bitsandbytes takes fp32. Source: get_supported_act_dtypes."""
    return dtype not in ("float32", "float") or SCHEMES[scheme].bits >= 16 or scheme.startswith("bnb")


def _same_family(stored: str, asked: str) -> bool:
    if "fp8" in (asked, stored):
        return asked == stored
    return SCHEMES[stored].bits == {"4bit": 4, "int8": 8}.get(asked)


def _dtype(spec: ModelSpec, weights: _Weights, device: Device, request: PlanRequest) -> str:
    if request.dtype not in (None, "auto"):
        return {"half": "float16", "float": "float32", **_SCHEME_DTYPES}.get(str(request.dtype), str(request.dtype))
    if weights.quant.scheme in _SCHEME_DTYPES and request.quant in _SCHEME_DTYPES:
        return _SCHEME_DTYPES[weights.quant.scheme]
    if device.kind == "cuda" and spec.dtype == "bfloat16" and not device.supports("bf16"):
        return "float16"  # before Ampere there is no bf16; vLLM refuses it, fp16 holds the same bytes
    return "bfloat16" if spec.dtype == "float32" and device.kind == "cuda" else spec.dtype


def _first_spec(checkpoint: Checkpoint, request: PlanRequest, place: _Place) -> ModelSpec:
    """The weights that are tried first: a sibling's groups or blocks may be what doesn't divide."""
    first = next(_quantizations(checkpoint, request, place), None)
    return checkpoint.spec if first is None else first.spec


def _nothing_runs(checkpoint: Checkpoint, request: PlanRequest, place: _Place) -> str:
    spec, version = _first_spec(checkpoint, request, place), request.engine_version
    reason = why_not_divisible(spec, request.tensor_parallel_size or 1, version)
    if reason:
        sizes = [size for size in range(1, 17) if not why_not_divisible(spec, size, version)]
        works = f"{spec.id} divides over {', '.join(map(str, sizes))}"
        return f"--tensor-parallel-size {request.tensor_parallel_size}: {reason}; {works}"
    engine = f"{place.engine} on a CPU" if place.devices[0].kind == "cpu" else place.engine
    runs = [name for name in SCHEMES if place.online(name, checkpoint.spec) is not None or SCHEMES[name].bits >= 16]
    other = any("transformers" in SCHEMES[name].in_flight for name in resolve_scheme(request.quant))
    hint = "; or give --engine transformers" if other and place.engine == "vllm" else ""
    return (
        f"--quant {request.quant} of {checkpoint.id} does not run on {engine}: there is no known checkpoint of it that "
        f"does, and {place.engine} can't quantize so while loading here. It can: {', '.join(runs)}{hint}"
    )
