"""Hardware of the cluster's nodes, and the hardware that all of them have in common. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qserve.core.hardware import Device, Hardware

__all__ = ["Node", "common_hardware", "of_one_kind"]


@dataclass(frozen=True)
class Node:
    """A machine of the cluster.

    `num_cpus` and `num_gpus` are what Ray may give away there in all, `hardware` what the machine says itself.
    """

    id: str
    address: str
    num_cpus: float
    num_gpus: float
    hardware: Hardware

    @property
    def kind(self) -> tuple[int, str]:
        """Cards and their name: replicas of one plan run on nodes of one kind."""
        cards = self.hardware.devices[: int(self.num_gpus)]
        return len(cards), cards[0].name if cards else ""


def of_one_kind(nodes: Sequence[Node]) -> list[Node]:
    """The nodes of the kind that has most memory of cards in all; all of them where there are no cards."""
    kinds: dict[tuple[int, str], list[Node]] = {}
    for node in nodes:
        kinds.setdefault(node.kind, []).append(node)
    return max(kinds.values(), key=lambda group: sum(_card_bytes(node) for node in group))


def common_hardware(nodes: Sequence[Node]) -> Hardware:
    """What each of `nodes` (of one kind) has at least: a replica may come to any of them, and move."""
    first = min(nodes, key=lambda node: node.hardware.ram_for_models_bytes).hardware
    cards = [node.hardware.devices[: int(node.num_gpus)] for node in nodes]
    # Which card a replica gets is Ray's choice, so all count as the fullest one.
    each = [min(same, key=lambda card: card.available_bytes) for same in zip(*cards, strict=True)]
    fullest = min(each, key=lambda card: card.available_bytes, default=None)
    devices: tuple[Device, ...] = tuple(replace(fullest, uuid=card.uuid) for card in each) if fullest else ()
    cores = min(min(node.hardware.cpu_cores, int(node.num_cpus)) for node in nodes)
    return replace(first, devices=devices, cpu_cores=max(1, cores))


def _card_bytes(node: Node) -> int:
    return sum(card.available_bytes for card in node.hardware.devices[: int(node.num_gpus)])
