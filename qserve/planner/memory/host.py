"""What a service holds in RAM beside its models: the gateway, its readers of large bodies, and the web UI."""

from __future__ import annotations

from dataclasses import replace

from qserve.core.hardware import Device, Hardware, HostProcess
from qserve.planner.memory.reserve import Reserve
from qserve.units import MIB, format_bytes

__all__ = ["GATEWAY", "LARGE_BODIES", "RAY_DRIVER", "WEB_UI", "shared_card", "with_host"]

GATEWAY = HostProcess(
    "gateway",
    70 * MIB,
    63 * MIB,
    77 * MIB,
    "resident memory of `qserve up`: 64 MiB when it is ready, 71 to 74 under 64 clients (docs/results/soak.md); the "
    "bodies that are read at a time, 256 MiB at most, come and go, and so does what streams keep to be continued, "
    "64 MiB at most, and background responses, --keep-responses-mib at most",
)
LARGE_BODIES = HostProcess(
    "large requests",
    120 * MIB,
    40 * MIB,
    132 * MIB,
    "122 MiB in three processes that read bodies above 128 KiB, each while such bodies come (gateway/large_bodies.py)",
)
WEB_UI = HostProcess(
    "web UI",
    208 * MIB,
    188 * MIB,
    228 * MIB,
    "resident memory of Gradio's process: 195 MiB when it is ready, 212 after all pages were used (bench/ui.py)",
)
RAY_DRIVER = HostProcess(
    "gateway",
    95 * MIB,
    85 * MIB,
    105 * MIB,
    "Ray 2.60 in the process of `qserve up --ray`: 100 MB of a driver with three nodes (docs/results/scale.md), 49 MiB "
    "of them `import ray`",
)


def with_host(
    hardware: Hardware,
    has_ui: bool = True,
    num_gateways: int = 1,
    is_driver: bool = False,
    min_free_bytes: int | None = None,
) -> Hardware:
    """The machine with a service on it: plans on its RAM, and on GPUs that share it, leave these bytes free.

    `has_ui`: False with --no-ui; else it is counted although it starts only when it is first opened. `num_gateways`:
    several relay in processes of their own, beside the one that they ask; each has its own readers of large bodies.
    `is_driver`: it is a driver of a Ray cluster (`qserve up --ray`). `min_free_bytes`: --min-free-ram.
    """
    gateway = GATEWAY if num_gateways == 1 else _times(GATEWAY, 1 + num_gateways)
    gateway = _with(gateway, RAY_DRIVER) if is_driver else gateway
    large_bodies = _times(LARGE_BODIES, num_gateways)
    hosting = replace(hardware, host=(gateway, large_bodies, *((WEB_UI,) if has_ui else ())))
    return _with_shared_ram(_with_reserve(hosting, min_free_bytes), min_free_bytes)


def shared_card(card: Device, host_bytes: int, min_free_bytes: int | None = None) -> Device:
    """A described card as a service finds it: where it shares the RAM, the system and our other processes hold some.

    Its memory is then the RAM. Of AMD's it is a part of that, which Linux bounds: the rest is theirs.
    """
    if not card.shares_ram or card.compute_capability is None:
        return card
    reserve = Reserve.of(card.total_bytes, shares_gpu=True, asked_bytes=min_free_bytes)
    return _holding_at_most(card, card.available_bytes - host_bytes - reserve.planned_bytes)


def _with_reserve(hardware: Hardware, min_free_bytes: int | None) -> Hardware:
    """With the RAM that stays free: where a GPU shares it, or somebody asked for it. (Plans on a CPU leave a tenth.)"""
    shares_gpu = any(card.shares_ram for card in hardware.devices)
    if hardware.is_described or not (shares_gpu or min_free_bytes):
        return hardware
    reserve = Reserve.of(hardware.ram_total_bytes, shares_gpu=shares_gpu, asked_bytes=min_free_bytes)
    return replace(hardware, ram_available_bytes=max(0, hardware.ram_available_bytes - reserve.planned_bytes))


def _with_shared_ram(hardware: Hardware, min_free_bytes: int | None) -> Hardware:
    """With GPUs that take no more of the RAM than there is for models, and a note that says so."""
    if hardware.plan_only is not None or not any(card.shares_ram for card in hardware.devices):
        return hardware
    if hardware.is_described:
        cards = tuple(shared_card(card, hardware.host_bytes, min_free_bytes) for card in hardware.devices)
    else:
        cards = tuple(
            _holding_at_most(card, hardware.ram_for_models_bytes) if card.shares_ram else card
            for card in hardware.devices
        )
    kept = sum(card.kept_free_bytes for card in cards)
    if not kept:
        return hardware
    name = next(card.name for card in cards if card.shares_ram)
    note = (
        f"{name} has its memory in the machine's RAM: {format_bytes(kept, 1)} of it stay free for the system and the "
        "service's other processes"
    )
    return replace(hardware, devices=cards, notes=(*hardware.notes, note))


def _holding_at_most(card: Device, num_bytes: int) -> Device:
    """With what it has free beyond `num_bytes` kept free."""
    return replace(card, kept_free_bytes=card.available_bytes - max(0, min(card.available_bytes, num_bytes)))


def _with(one: HostProcess, more: HostProcess) -> HostProcess:
    """What one process holds for both."""
    return replace(
        one,
        num_bytes=one.num_bytes + more.num_bytes,
        low_bytes=one.low_bytes + more.low_bytes,
        high_bytes=one.high_bytes + more.high_bytes,
        source=f"{one.source}; and {more.source}",
    )


def _times(one: HostProcess, count: int) -> HostProcess:
    """So many of them, as one."""
    if count == 1:
        return one
    return replace(
        one,
        num_bytes=count * one.num_bytes,
        low_bytes=count * one.low_bytes,
        high_bytes=count * one.high_bytes,
        source=f"{count} times: {one.source}",
    )
