"""Memory as a card tells it. No card is here: torch's and the driver's answers are given."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from qserve.model import memory

GIB, MIB = 1024**3, 1024**2


def card(monkeypatch: pytest.MonkeyPatch, used: int, process: int | None) -> dict[str, int]:
    """The terms of a card of 80 GiB with 20 GiB reserved, `used` by all processes, `process` as NVML has it."""
    answers = {"memory_reserved": 20 * GIB, "memory_allocated": 18 * GIB, "max_memory_allocated": 19 * GIB}
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda index, answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(name="Card", uuid="0"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (80 * GIB - used, 80 * GIB))
    monkeypatch.setattr(memory, "_process_bytes", lambda uuid, pid: (process, "NVML, this process"))
    return memory._on_cards([memory._card(0)])


def test_the_driver_knows_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = card(monkeypatch, used=70 * GIB, process=20 * GIB + 520 * MIB)
    assert terms == {"activations_bytes": GIB, "runtime_bytes": 520 * MIB}


def test_in_a_container_what_a_card_holds_is_ours_while_we_are_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert card(monkeypatch, used=20 * GIB + 520 * MIB, process=None)["runtime_bytes"] == 520 * MIB


def test_in_a_container_what_a_neighbour_holds_is_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be learned, and the next plan would leave as much free."""
    assert card(monkeypatch, used=35 * GIB, process=None)["runtime_bytes"] == 0
