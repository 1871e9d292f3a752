"""A machine divided: the part of it that each of several replicas may take."""

from __future__ import annotations

from dataclasses import replace

from qserve.core.hardware import Device, Hardware

__all__ = ["share_out"]


def share_out(hardware: Hardware, count: int, ranks: int) -> list[Hardware]:
    """The machine as each of `count` replicas may take it; `ranks` cards each, 0: none, they compute on the CPU."""
    if count == 1:
        return [hardware]
    if not ranks:
        cores = max(1, hardware.cpu_cores // count)
        # What the service's other processes hold is taken once, and not from each part.
        ram = hardware.ram_for_models_bytes // count + hardware.host_bytes
        return [replace(hardware, devices=(), ram_available_bytes=ram, cpu_cores=cores)] * count
    groups = [hardware.devices[at : at + ranks] for at in range(0, len(hardware.devices) - ranks + 1, ranks)]
    sharers = [len(range(group, count, len(groups))) for group in range(len(groups))]
    return [
        replace(hardware, devices=tuple(_part(card, sharers[at % len(groups)]) for card in groups[at % len(groups)]))
        for at in range(count)
    ]


def _part(card: Device, sharers: int) -> Device:
    """A card of which the other sharers hold their parts."""
    others = card.available_bytes - card.available_bytes // sharers
    return replace(card, used_by_others_bytes=card.used_by_others_bytes + others)
