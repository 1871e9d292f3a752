"""Which ways of running a model are worth counting, best first: quantization, engine, layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from qserve.core import facts
from qserve.core.checkpoint import Checkpoint
from qserve.core.dimensions import tensors_of
from qserve.core.hardware import Device, Hardware
from qserve.core.model_spec import ModelSpec
from qserve.core.quantization import FAMILIES, SCHEMES, CheckpointQuantization, Engine, resolve_scheme
from qserve.core.tensors import Tensor
from qserve.errors import UsageError
from qserve.planner import constants
from qserve.planner.layout import layouts, why_not_divisible
from qserve.planner.plan import QuantChoice
from qserve.planner.request import PlanRequest
from qserve.planner.setup import Setup

__all__ = ["candidates", "sibling_of"]

_SCHEME_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True)
class _Weights:
    """One quantization of the model: what to load, what to do with it in flight."""

    quant: QuantChoice
    spec: ModelSpec
    tensors: tuple[Tensor, ...]
    in_flight: CheckpointQuantization | None = None


def candidates(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> Iterator[Setup]:
    """Setups in the order in which they are preferred: best quantization first, then fewest cards.

    Raises UsageError where the request asks for what no engine does.
    """
    engine = _engine(hardware, request)
    _refuse_what_nobody_reads(checkpoint, request, engine)
    devices = hardware.devices or (hardware.cpu_device,)
    if engine == "transformers" and not request.engine_version:
        request = replace(request, engine_version=constants.TRANSFORMERS_VERSION)
    version = request.engine_version or constants.VLLM_VERSION
    found = False
    for weights in _quantizations(checkpoint, devices[0], request, engine):
        dtype = _dtype(checkpoint.spec, weights, devices[0], request)
        for tensor_parallel, pipeline_parallel in _layouts(weights.spec, devices, request, engine):
            found = True
            ranks = len(devices) if engine == "transformers" else tensor_parallel * pipeline_parallel
            yield Setup(
                checkpoint=checkpoint,
                hardware=hardware,
                request=request,
                engine=engine,
                engine_version=version,
                quant=weights.quant,
                spec=weights.spec,
                tensors=weights.tensors,
                in_flight=weights.in_flight,
                dtype=dtype,
                devices=devices[:ranks],
                tensor_parallel_size=tensor_parallel,
                pipeline_parallel_size=pipeline_parallel,
            )
    if not found:
        raise UsageError(_nothing_runs(checkpoint, request, engine))


def _refuse_what_nobody_reads(checkpoint: Checkpoint, request: PlanRequest, engine: Engine) -> None:
    unread = request.only_vllm_reads() if engine == "transformers" else ()
    if unread:
        raise UsageError(
            f"{', '.join(unread)}: vLLM's alone, and this plan is for the transformers engine; "
            "leave it out, or give --engine vllm"
        )
    if request.num_speculative_tokens and not checkpoint.spec.mtp_layers:
        raise UsageError(
            f"--num-speculative-tokens {request.num_speculative_tokens}: {checkpoint.id} has no MTP head to draft "
            "with; leave it out"
        )


def sibling_of(model_id: str, scheme: str) -> str | None:
    """The checkpoint of configs/siblings.toml that holds `model_id` in `scheme`; None where there is none."""
    sibling: str | None = facts.load("siblings").get(model_id, {}).get(scheme)
    return sibling


def _engine(hardware: Hardware, request: PlanRequest) -> Engine:
    if request.engine is not None:
        return request.engine
    return "vllm" if hardware.devices and request.offload == "none" else "transformers"


def _layouts(
    spec: ModelSpec, devices: tuple[Device, ...], request: PlanRequest, engine: Engine
) -> Iterator[tuple[int, int]]:
    if engine == "transformers" or devices[0].kind == "cpu":
        yield 1, 1
    else:
        yield from layouts(spec, len(devices), request)


def _quantizations(checkpoint: Checkpoint, device: Device, request: PlanRequest, engine: Engine) -> Iterator[_Weights]:
    allowed = resolve_scheme(request.quant)
    stored = checkpoint.spec.quantization
    if stored is not None:
        if request.quant != "auto" and stored.scheme not in allowed and not _same_family(stored.scheme, request.quant):
            raise UsageError(
                f"{checkpoint.id} is stored as {stored.scheme}, and --quant {request.quant} can't requantize it; "
                f"leave --quant out, or name the 16-bit model"
            )
        quant = QuantChoice(stored.scheme, checkpoint.id, reason=f"the checkpoint is stored as {stored.scheme}")
        yield _Weights(quant, checkpoint.spec, checkpoint.counted_tensors)
        return
    for scheme in allowed:
        if request.quant in FAMILIES and not _pays(scheme, device, engine):
            continue
        weights = _quantized(checkpoint, scheme, engine)
        if weights is not None:
            yield weights


def _quantized(checkpoint: Checkpoint, scheme: str, engine: Engine) -> _Weights | None:
    """`scheme` from the checkpoint itself, from a sibling, or in flight; None where `engine` can do none of them."""
    if SCHEMES[scheme].bits >= 16:
        quant = QuantChoice(scheme, checkpoint.id, reason="as it was trained: nothing is lost")
        return _Weights(quant, checkpoint.spec, checkpoint.counted_tensors)
    sibling = sibling_of(checkpoint.id, scheme)
    stored = _stored_as(scheme)
    if sibling is not None and stored is not None and engine in SCHEMES[scheme].engines:
        spec = replace(checkpoint.spec, quantization=stored, id=sibling)
        reason = f"{sibling} was quantized with calibration data, which is better than quantizing while loading"
        return _Weights(QuantChoice(scheme, sibling, reason=reason), spec, tensors_of(spec))
    if engine in SCHEMES[scheme].in_flight:
        reason = f"no {scheme} checkpoint of {checkpoint.id} is known, so {engine} quantizes it while loading"
        return _Weights(
            QuantChoice(scheme, checkpoint.id, in_flight=True, reason=reason),
            checkpoint.spec,
            checkpoint.counted_tensors,
            _in_flight(scheme),
        )
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


def _in_flight(scheme: str) -> CheckpointQuantization:
    table = {
        "fp8": CheckpointQuantization("fp8", 8),
        "bnb-int8": CheckpointQuantization("bnb-int8", 8),
        "bnb-nf4": CheckpointQuantization("bnb-nf4", 4, 64, double_quant=True),
        "bnb-nf4-single": CheckpointQuantization("bnb-nf4-single", 4, 64),
    }
    return table[scheme]


def _pays(scheme: str, device: Device, engine: Engine) -> bool:
    """Whether a word like `auto` or `4bit` may mean this scheme here; an exact scheme is taken at its word.

    fp8 needs Ampere's weight-only kernels at least; transformers on a CPU has kernels for bitsandbytes alone.
    """
    if device.kind == "cpu" and engine == "transformers":
        return SCHEMES[scheme].bits >= 16 or scheme.startswith("bnb")
    if scheme == "fp8":
        return device.supports("fp8") or (device.compute_capability or (0, 0)) >= (8, 0)
    return True


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


def _nothing_runs(checkpoint: Checkpoint, request: PlanRequest, engine: Engine) -> str:
    reason = why_not_divisible(checkpoint.spec, request.tensor_parallel_size or 1)
    if reason:
        return f"--tensor-parallel-size {request.tensor_parallel_size}: {reason}; choose a divisor of all of them"
    runs = [name for name, scheme in SCHEMES.items() if engine in scheme.in_flight]
    return (
        f"--quant {request.quant} of {checkpoint.id} does not run on {engine}: there is no known checkpoint of it, and "
        f"{engine} can't quantize so while loading. It can: {', '.join(runs)}"
    )
