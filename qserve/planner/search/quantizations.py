"""Which quantizations of a model are worth counting, best first: as stored, a sibling's, or made while loading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from qserve.core.checkpoint import Checkpoint
from qserve.core.dimensions import tensors_of
from qserve.core.hardware import CpuFeatures, Device
from qserve.core.model_spec import ModelSpec
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.quantization_config import read_quantization
from qserve.core.schemes import FAMILIES, SCHEMES, resolve_scheme
from qserve.core.tensors import Tensor
from qserve.errors import UsageError
from qserve.planner.engine import own_engines
from qserve.planner.packed import packed_checkpoints
from qserve.planner.plan import QuantChoice
from qserve.planner.request import PlanRequest
from qserve.planner.siblings import padded_size, sibling_of, stored_as

__all__ = ["Offer", "Weights", "dtype_of", "nothing_runs", "quantizations"]

_SCHEME_DTYPES = {name: scheme.dtype for name, scheme in SCHEMES.items() if scheme.dtype}


@dataclass(frozen=True)
class Weights:
    """One quantization of the model: what to load, what to do with it in flight."""

    quant: QuantChoice
    spec: ModelSpec
    tensors: tuple[Tensor, ...]
    in_flight: CheckpointQuantization | None = None


class Offer(Protocol):
    """What one engine can do with a quantization on one kind of device."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def device(self) -> Device: ...

    @property
    def cpu(self) -> CpuFeatures: ...

    def loads(self, scheme: str) -> bool:
        """Whether it is to be given checkpoints that are stored so."""
        ...

    def runs_stored(self, scheme: str) -> bool:
        """Whether it has kernels here for a checkpoint that is stored so."""
        ...

    def online(self, scheme: str, spec: ModelSpec) -> CheckpointQuantization | None:
        """What `scheme` becomes when it quantizes while loading; None where it can't here."""
        ...

    def details(self, scheme: str) -> Iterator[str]:
        """What is worth knowing of a scheme that it makes while loading."""
        ...

    def pays(self, scheme: str) -> bool:
        """Whether a word like `auto` or `4bit` may mean this scheme here; an exact scheme is taken at its word."""
        ...

    def computes_in(self, scheme: str, dtype: str | None) -> bool:
        """Whether kernels for `scheme` compute in `dtype`."""
        ...


def quantizations(checkpoint: Checkpoint, request: PlanRequest, offer: Offer) -> Iterator[Weights]:
    """Those that --quant allows and the engine runs there. Raises UsageError for a stored one that it does not run."""
    allowed = resolve_scheme(request.quant)
    stored = checkpoint.spec.quantization
    if stored is not None:
        _refuse_stored(checkpoint, stored, request, offer)
        quant = QuantChoice(stored.scheme, checkpoint.id, reason=f"the checkpoint is stored as {_in_words(stored)}")
        yield Weights(quant, checkpoint.spec, checkpoint.counted_tensors)
        return
    if checkpoint.packed_word:
        allowed = _unpacked(checkpoint, allowed, request, offer)
    for scheme in allowed:
        is_named = request.quant == scheme and offer.device.kind != "cpu"
        if request.quant in FAMILIES and not is_named and not (_pays(scheme, offer.device) and offer.pays(scheme)):
            continue
        if not offer.computes_in(scheme, request.dtype):
            continue
        weights = _quantized(checkpoint, scheme, offer, is_exact=request.quant not in FAMILIES)
        if weights is not None:
            yield weights


def _unpacked(checkpoint: Checkpoint, allowed: Sequence[str], request: PlanRequest, offer: Offer) -> tuple[str, ...]:
    """Of `allowed` those in 16 bit: what is packed can't be packed while loading. Raises UsageError for none."""
    kept = tuple(scheme for scheme in allowed if SCHEMES[scheme].bits >= 16)
    if not kept:
        raise UsageError(
            f"--quant {request.quant}: {checkpoint.id} is packed by its name ({checkpoint.packed_word}), and "
            f"{offer.title} packs 16-bit weights alone while loading; leave --quant out, or name the 16-bit model"
        )
    return kept


def _pays(scheme: str, device: Device) -> bool:
    """Whether the card computes in it, or has kernels by which others gain. Of a card that is planned for only, its row
    says so.
    """
    row = SCHEMES[scheme]
    if device.is_plan_only:
        return True
    is_native = row.native is not None and device.supports(row.native.math)
    return is_native or (device.compute_capability or (0, 0)) >= row.pays_from


def _refuse_stored(checkpoint: Checkpoint, stored: CheckpointQuantization, request: PlanRequest, offer: Offer) -> None:
    allowed = resolve_scheme(request.quant)
    if request.quant != "auto" and stored.scheme not in allowed and not _same_family(stored.scheme, request.quant):
        raise UsageError(
            f"{checkpoint.id} is stored as {stored.scheme}, and --quant {request.quant} can't requantize it; "
            f"leave --quant out, or name the 16-bit model"
        )
    if offer.runs_stored(stored.scheme):
        return
    where = "on this CPU" if offer.device.kind == "cpu" else f"for {offer.device.name}"
    able = [
        f"--engine {engine.name}"
        for engine in ([] if offer.device.is_plan_only else own_engines())
        if engine.name != offer.name and engine.planner.runs_stored(stored.scheme, offer.device, offer.cpu)
    ]
    instead = f"use {' or '.join(able)}, or name" if able else "name"
    raise UsageError(
        f"{checkpoint.id} is stored as {stored.scheme}, and {offer.title} has no kernels for that {where}; "
        f"{instead} the 16-bit model"
    )


def _in_words(stored: CheckpointQuantization) -> str:
    """The scheme, and those of the modules that are stored otherwise."""
    others = dict.fromkeys(other.scheme for _, other in stored.overrides if other.scheme != stored.scheme)
    return f"{stored.scheme}, parts of it as {', '.join(others)}" if others else stored.scheme


def _quantized(checkpoint: Checkpoint, scheme: str, offer: Offer, *, is_exact: bool) -> Weights | None:
    """`scheme` from the checkpoint itself, from a sibling, or in flight; None where none of them runs there.

    Checkpoints by others are loaded where the scheme `is_exact`ly named: a word like 4bit asks for the maker's weights.
    """
    if SCHEMES[scheme].bits >= 16:
        quant = QuantChoice(scheme, checkpoint.id, reason="as trained: nothing is lost")
        return Weights(quant, checkpoint.spec, checkpoint.counted_tensors)
    sibling = sibling_of(checkpoint.id, scheme, of_others=is_exact)
    stored = read_quantization(stored_as(sibling, scheme), sibling) if sibling is not None else None
    if sibling is not None and stored is not None and offer.loads(scheme) and offer.runs_stored(scheme):
        columns = padded_size(sibling) or checkpoint.spec.intermediate_size
        spec = replace(checkpoint.spec, quantization=stored, id=sibling, intermediate_size=columns)
        reason = f"{sibling} was quantized with calibration data"
        return Weights(QuantChoice(scheme, sibling, reason=reason), spec, tensors_of(spec))
    online = offer.online(scheme, checkpoint.spec)
    if online is not None:
        reason = _why_online(online.scheme, scheme, checkpoint.id, offer)
        quant = QuantChoice(online.scheme, checkpoint.id, in_flight=True, reason=reason)
        return Weights(quant, checkpoint.spec, checkpoint.counted_tensors, online)
    return None


def _why_online(scheme: str, asked: str, checkpoint_id: str, offer: Offer) -> str:
    """The choice in a sentence."""
    why = f"no {asked} checkpoint of {checkpoint_id} is known, so " if SCHEMES[asked].is_stored else ""
    return "; ".join([f"{why}{offer.name} quantizes it while loading", *offer.details(scheme)])


def _same_family(stored: str, asked: str) -> bool:
    """Whether the word `asked` means `stored`: by its own words, or by its bits where it has none."""
    row = SCHEMES[stored]
    words = set(row.words) - {"auto"}
    return asked in words if words else row.bits == {"4bit": 4, "int8": 8}.get(asked)


def dtype_of(spec: ModelSpec, weights: Weights, device: Device, request: PlanRequest) -> str:
    """What the model computes in on `device`."""
    if request.dtype not in (None, "auto"):
        return {"half": "float16", "float": "float32", **_SCHEME_DTYPES}.get(str(request.dtype), str(request.dtype))
    if weights.quant.scheme in _SCHEME_DTYPES and request.quant in _SCHEME_DTYPES:
        return _SCHEME_DTYPES[weights.quant.scheme]
    if device.kind == "cpu":
        return spec.dtype
    wanted = "bfloat16" if spec.dtype == "float32" else spec.dtype
    # Before Ampere there is no bf16; vLLM refuses it, fp16 holds the same bytes.
    return "float16" if wanted == "bfloat16" and not device.supports("bf16") else wanted


def nothing_runs(checkpoint: Checkpoint, request: PlanRequest, offer: Offer) -> str:
    """That no quantization which was asked for runs there, with those that do."""
    where = f"{offer.name} on a CPU" if offer.device.kind == "cpu" else offer.name
    runs = [name for name in SCHEMES if offer.online(name, checkpoint.spec) is not None or SCHEMES[name].bits >= 16]
    able = [
        f"--engine {engine.name}"
        for engine in own_engines()
        if engine.name != offer.name
        and any(engine.planner.quantizes(scheme, offer.device) for scheme in resolve_scheme(request.quant))
    ]
    hint = f"; or give {' or '.join(able)}" if able else ""
    hint += _made_by_others(checkpoint.id, resolve_scheme(request.quant))
    return (
        f"--quant {request.quant} of {checkpoint.id} does not run on {where}: no checkpoint of it is known that does, "
        f"and {offer.name} can't quantize to it while loading here. It can: {', '.join(runs)}{hint}"
    )


def _made_by_others(model_id: str, schemes: Sequence[str]) -> str:
    """Half a sentence that names packed checkpoints of the model: those of the schemes, else of as many bits."""
    known, bits = packed_checkpoints(model_id), {SCHEMES[one].bits for one in schemes}
    asked = {one: scheme for one, scheme in known.items() if scheme in schemes}
    asked = asked or {one: scheme for one, scheme in known.items() if SCHEMES[scheme].bits in bits}
    named = [f"`qserve plan {one}` ({scheme})" for one, scheme in asked.items()]
    return f"; others have packed it: {', '.join(named)}" if named else ""
