"""The plan of a model whose packing is a guess: the largest weights that its name can mean decide, the band is both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qserve.core.checkpoint import Checkpoint
from qserve.planner.plan import DevicePlan, Plan
from qserve.units import format_bytes, format_count

__all__ = ["between", "of_lighter"]

_LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")
_RATES = ("output_tokens_per_s", "requests_per_s", "max_rps")


def between(heavy: Plan, light: Plan, layouts: tuple[str, str]) -> Plan:
    """One plan of the two layouts, named in words by `layouts`, heavy before light.

    Where the larger weights fit, their plan, with bands as wide as both. Where only the smaller do, theirs, which
    `may_fit`: it is shown and not promised, and what is missing otherwise is said. Where none fits, the refusal.
    """
    if heavy.fits:
        return _widened(heavy, light) if light.fits else heavy
    if not light.fits:
        return heavy
    found = _may_fit(light, _weights(heavy), heavy.short_bytes, layouts)
    return replace(found, guess=heavy.guess, suggestions=heavy.suggestions)


def of_lighter(heavy: Checkpoint, light: Plan, short_bytes: int) -> Plan:
    """What may fit where the larger weights have no plan, and are `short_bytes` too large: `light`, which fits.

    A device has as much more of the weights as the whole checkpoint has.
    """
    assert heavy.lighter is not None, "`light` is the plan of it"
    most, least = (sum(tensor.nbytes for tensor in one.counted_tensors) for one in (heavy, heavy.lighter))
    layouts = heavy.layout, heavy.lighter.layout
    found = _may_fit(light, round(_weights(light) * most / least), short_bytes, layouts)
    return replace(found, guess=heavy.guess, suggestions=())


def _may_fit(light: Plan, most: int, short_bytes: int, layouts: tuple[str, str]) -> Plan:
    """`light`, which fits, as a plan that may: `short_bytes` are missing where a device's weights are of `most` bytes.

    The layouts are told in words, the one with the larger weights first.
    """
    least = _weights(light)
    why = (
        f"It may fit: it does if its weights are {format_bytes(least)} a device ({layouts[1]}), as planned here; "
        f"{format_bytes(short_bytes)} are missing if they are {format_bytes(most)} ({layouts[0]})"
    )
    return replace(
        light,
        fits=False,
        may_fit=True,
        why_not=why,
        short_bytes=short_bytes,
        engine_args=(),
        devices=tuple(_with_band(device, device.weights_bytes, most) for device in light.devices),
        speed=None if light.speed is None else _slowed(light.speed, most / max(least, 1)),
    )


def _widened(heavy: Plan, light: Plan) -> Plan:
    """`heavy` with the bands of both, and how much cache the smaller weights would leave."""
    least = _weights(light)
    devices = tuple(_with_band(device, least, device.weights_bytes) for device in heavy.devices)
    more = f"; with the smaller ones the KV cache holds {format_count(light.kv_cache_tokens)} tokens"
    told = heavy.guess + (more if light.kv_cache_tokens > heavy.kv_cache_tokens else "")
    speed = heavy.speed
    if speed is not None and light.speed is not None:
        speed = {**speed, **{key: _joined(speed[key], light.speed[key]) for key in _shared(speed, light.speed)}}
    return replace(heavy, devices=devices, guess=told, speed=speed)


def _weights(plan: Plan) -> int:
    """Of the device that has most of them."""
    return max((device.weights_bytes for device in plan.devices), default=0)


def _with_band(device: DevicePlan, low_bytes: int, high_bytes: int) -> DevicePlan:
    """With the band of the first term of the weights, which the others add to, as wide as the guess."""
    first = next((term for term in device.terms if term.column == "weights"), None)
    if first is None:
        return device
    others = device.weights_bytes - first.num_bytes
    low, high = min(first.low_bytes, low_bytes - others), max(first.high_bytes, high_bytes - others)
    wide = replace(first, low_bytes=max(low, 0), high_bytes=high)
    return replace(device, terms=tuple(wide if term is first else term for term in device.terms))


def _shared(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Figures of both that have a band."""
    return [key for key in (*_LATENCIES, *_RATES) if _has_band(one.get(key)) and _has_band(other.get(key))]


def _has_band(figure: Any) -> bool:
    return isinstance(figure, Mapping) and "low" in figure and "high" in figure


def _joined(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {**one, "low": min(one["low"], other["low"]), "high": max(one["high"], other["high"])}


def _slowed(speed: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """With the slow ends as of weights that are larger by `factor`: each step reads them."""
    slow = {key: {**speed[key], "high": speed[key]["high"] * factor} for key in _LATENCIES if _has_band(speed.get(key))}
    few = {key: {**speed[key], "low": speed[key]["low"] / factor} for key in _RATES if _has_band(speed.get(key))}
    return {**speed, **slow, **few}
