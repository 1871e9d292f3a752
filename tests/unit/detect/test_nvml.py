"""Cards by NVML. No card is here, so a small pynvml with the library's own names stands in for the driver."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qserve.core.hardware import Device
from qserve.detect import nvml
from qserve.detect.host import HostMemory
from qserve.detect.nvml import bytes_by_process, driver_version, read_devices
from qserve.units import GIB, MIB

HOST = HostMemory(120 * GIB, 100 * GIB)


class NVMLError(Exception):
    """As pynvml's."""


@dataclass
class Card:
    name: str
    total_bytes: int | None
    used_bytes: int = 0
    reserved_bytes: int = 0
    cores: int = 16384
    capability: tuple[int, int] = (8, 9)
    bus_bits: int = 384
    clock_mhz: int = 10501
    uuid: str = "GPU-0000"
    slices: list[Card] = field(default_factory=list)


def _memory_info(card: Card, version: object = None) -> SimpleNamespace:
    if card.total_bytes is None:
        raise NVMLError("not supported")
    if version is None:  # the old call counts the driver's own share as used
        return SimpleNamespace(total=card.total_bytes, used=card.used_bytes + card.reserved_bytes)
    return SimpleNamespace(total=card.total_bytes, used=card.used_bytes, reserved=card.reserved_bytes)


def _part(card: Card, number: int) -> Card:
    if number >= len(card.slices):
        raise NVMLError("not found")
    return card.slices[number]


def _driver(cards: list[Card]) -> SimpleNamespace:
    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlMemory_v2=2,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: b"580.65.06",
        nvmlDeviceGetCount=lambda: len(cards),
        nvmlDeviceGetHandleByIndex=lambda index: cards[index],
        nvmlDeviceGetName=lambda card: card.name,
        nvmlDeviceGetUUID=lambda card: card.uuid.encode(),
        nvmlDeviceGetCudaComputeCapability=lambda card: card.capability,
        nvmlDeviceGetMemoryInfo=_memory_info,
        nvmlDeviceGetNumGpuCores=lambda card: card.cores,
        nvmlDeviceGetMaxClockInfo=lambda card, _: card.clock_mhz,
        nvmlDeviceGetMemoryBusWidth=lambda card: card.bus_bits,
        nvmlDeviceGetMigMode=lambda card: (int(bool(card.slices)), 0),
        nvmlDeviceGetMaxMigDeviceCount=lambda card: 7,
        nvmlDeviceGetMigDeviceHandleByIndex=_part,
        nvmlDeviceGetAttributes_v2=lambda part: SimpleNamespace(
            multiprocessorCount=part.cores, memorySizeMB=part.total_bytes // MIB
        ),
    )


def _read(
    monkeypatch: pytest.MonkeyPatch, cards: list[Card], **environ: str
) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    monkeypatch.setitem(sys.modules, "pynvml", _driver(cards))  # type: ignore[arg-type]
    return read_devices(environ, HOST)


def test_no_driver_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse() -> Any:
        raise NVMLError("NVML Shared Library Not Found")

    driver = _driver([])
    driver.nvmlInit = refuse
    monkeypatch.setitem(sys.modules, "pynvml", driver)  # type: ignore[arg-type]
    monkeypatch.setattr(nvml, "_DRIVER_FILE", tmp_path / "nvidiactl")
    assert read_devices({}, HOST) == ((), ()) and driver_version() == ""
    (tmp_path / "nvidiactl").touch()
    devices, (note,) = read_devices({}, HOST)
    assert devices == ()
    assert "NVML does not answer (NVML Shared Library Not Found): no card is counted" in note


def test_a_card_that_fell_off_the_bus_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = _driver([Card("Lost", 24 * GIB), Card("Fine", 24 * GIB, uuid="GPU-1111")])

    def name(card: Card) -> str:
        if card.name == "Lost":
            raise NVMLError("GPU is lost")
        return card.name

    driver.nvmlDeviceGetName = name
    monkeypatch.setitem(sys.modules, "pynvml", driver)  # type: ignore[arg-type]
    (device,), notes = read_devices({}, HOST)
    assert (device.name, device.uuid) == ("Fine", "GPU-1111")
    assert notes == ("card 0 does not answer (GPU is lost) and is left out; see nvidia-smi",)


def test_a_card_is_read_as_cuda_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card("Some Card", 24 * GIB, used_bytes=GIB, reserved_bytes=400 * MIB)
    (device,), notes = _read(monkeypatch, [card])
    assert driver_version() == "580.65.06"
    assert device.total_bytes == 24 * GIB - 400 * MIB
    assert device.used_by_others_bytes == GIB
    assert device.sm_count == 128
    assert device.bandwidth_bytes_per_s == 1_008_096_000_000
    assert device.supports("fp8")
    assert "1.00 GiB is held by other processes" in notes[0]


def test_a_total_that_torch_saw_caps_what_nvml_says(monkeypatch: pytest.MonkeyPatch) -> None:
    (device,), _ = _read(monkeypatch, [Card("NVIDIA H100 80GB HBM3", 81559 * MIB, capability=(9, 0))])
    assert device.total_bytes == pytest.approx(79.19 * GIB, abs=0.01 * GIB)


def test_cards_that_share_the_ram_count_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    (device,), _ = _read(monkeypatch, [Card("NVIDIA GB10", None, capability=(12, 1))])
    assert (device.total_bytes, device.used_by_others_bytes) == (120 * GIB, 20 * GIB)


def test_mig_slices_stand_for_their_card(monkeypatch: pytest.MonkeyPatch) -> None:
    slices = [Card(f"H100 MIG 3g.40gb {n}", 40 * GIB, cores=60, uuid=f"MIG-{n}") for n in range(2)]
    card = Card("NVIDIA H100", 80 * GIB, capability=(9, 0), slices=slices)
    (device,), notes = _read(monkeypatch, [card])  # CUDA shows one slice to a process
    assert (device.total_bytes, device.sm_count) == (40 * GIB, 60)
    assert device.bandwidth_bytes_per_s == pytest.approx(1_008_096_000_000 / 2)
    assert "CUDA_VISIBLE_DEVICES=MIG-" in notes[0]
    (chosen,), _ = _read(monkeypatch, [card], CUDA_VISIBLE_DEVICES="MIG-1")
    assert chosen.name.endswith("1")
    # vLLM takes the number of a slice for that of a card; the card's number is the first slice's for everybody.
    assert (device.uuid, chosen.uuid) == ("0", "MIG-1")


def test_whole_cards_hide_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = Card("cut", 80 * GIB, slices=[Card("slice", 40 * GIB, uuid="MIG-0")])
    devices, _ = _read(monkeypatch, [cut, Card("whole", 80 * GIB)])
    assert [device.name for device in devices] == ["whole"]


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        ("1", ["b"]),
        ("1,0", ["b", "a"]),
        ("GPU-bb", ["b"]),
        ("", []),
        ("-1", []),
        ("0,7,1", ["a"]),  # CUDA stops at the first entry that names no card
    ],
)
def test_hidden_cards_stay_hidden(monkeypatch: pytest.MonkeyPatch, variable: str, names: list[str]) -> None:
    cards = [Card("a", GIB, uuid="GPU-aa11"), Card("b", GIB, uuid="GPU-bb22")]
    devices, notes = _read(monkeypatch, cards, CUDA_VISIBLE_DEVICES=variable)
    assert [device.name for device in devices] == names
    assert any("leaves" in note for note in notes) == (len(names) < 2)


def test_unlike_cards_are_told_to_set_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [Card("a", GIB, uuid="GPU-aa11"), Card("b", GIB, uuid="GPU-bb22")]
    assert any("CUDA_DEVICE_ORDER" in note for note in _read(monkeypatch, cards)[1])
    assert not any("PCI order" in note for note in _read(monkeypatch, cards, CUDA_DEVICE_ORDER="PCI_BUS_ID")[1])


def test_what_each_process_holds_is_summed_over_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = _driver([Card("A", 24 * GIB), Card("B", 24 * GIB), Card("Silent", 24 * GIB)])
    running = {"A": [(7, GIB), (8, None)], "B": [(7, 2 * GIB)]}

    def processes(card: Card) -> list[SimpleNamespace]:
        if card.name not in running:
            raise NVMLError("not supported")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in running[card.name]]

    driver.nvmlDeviceGetComputeRunningProcesses = processes
    monkeypatch.setitem(sys.modules, "pynvml", driver)  # type: ignore[arg-type]
    assert bytes_by_process() == {7: 3 * GIB, 8: 0}
