"""Cards by NVML: names, the driver's totals, what others hold, MIG slices, in the order that CUDA will see.

NVML is asked instead of torch because it needs no CUDA context (0.5 GiB) and no torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qserve.core.hardware import Device, formats_of, known_gpus
from qserve.detect.host import HostMemory
from qserve.units import format_bytes

__all__ = ["bytes_by_process", "driver_version", "read_devices"]

_MIB = 1024**2
_CLOCK_MEMORY = 2  # NVML_CLOCK_MEM
# What a driver puts there, NVML or not (in a sandbox, or where the library is of another release than the driver).
_DRIVER_FILE = Path("/dev/nvidiactl")
# CUDA cores a multiprocessor has; 128 where not named. Source: CUDA C++ Programming Guide, "Compute Capabilities".
_CORES_PER_SM = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}


_Named = tuple[tuple[str, ...], Device]
"""A card or MIG slice, and the names under which CUDA_VISIBLE_DEVICES may ask for it; lists are in PCI order."""


def read_devices(environ: Mapping[str, str], host: HostMemory) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Visible cards and notes about them; both empty where there is no NVIDIA driver.

    `environ` gives CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER. `host` is the memory of cards that share the RAM
    (Jetson, GB10), for which NVML knows no total of their own.
    """
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        silent = f"there is an NVIDIA driver, but NVML does not answer ({error}): no card is counted; see nvidia-smi"
        return (), (silent,) if _DRIVER_FILE.exists() else ()
    seen: list[_Named] = []
    broken: list[str] = []
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                seen += _cards_at(nvml, index, host)
            except nvml.NVMLError as error:  # fallen off the bus, or not ours to use: CUDA leaves it out as well
                broken.append(f"card {index} does not answer ({error}) and is left out; see nvidia-smi")
    finally:
        nvml.nvmlShutdown()
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    chosen = _one_slice(seen if visible is None else _visible(seen, visible))
    return tuple(device for _, device in chosen), (*broken, *_notes(seen, chosen, environ))


def driver_version() -> str:
    """The driver's release, such as 580.65.06; empty where NVML does not answer."""
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        try:
            return _decoded(nvml.nvmlSystemGetDriverVersion())
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        return ""


def bytes_by_process() -> dict[int, int]:
    """What the driver charges to each process on all cards, by process id.

    Empty without a driver, and where it does not tell (Jetson; a container with process ids of its own).
    """
    nvml = importlib.import_module("pynvml")
    held: dict[int, int] = {}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return held
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            for process in _ask(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle, default=()):
                held[process.pid] = held.get(process.pid, 0) + (process.usedGpuMemory or 0)
    finally:
        nvml.nvmlShutdown()
    return held


def _cards_at(nvml: Any, index: int, host: HostMemory) -> list[_Named]:
    """The card, or its MIG slices."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    slices = list(_mig_slices(nvml, handle))
    if not slices:
        uuid = _decoded(nvml.nvmlDeviceGetUUID(handle))
        return [((str(index), uuid), replace(_card(nvml, handle, host), uuid=uuid))]
    found: list[_Named] = []
    for number, part in enumerate(slices):
        uuid = _decoded(nvml.nvmlDeviceGetUUID(part))
        names = (uuid, f"{index}:{number}", *((str(index),) if number == 0 else ()))
        # The first one is asked for by the card's number, which every program reads as CUDA does; not so a MIG UUID.
        found.append((names, replace(_slice(nvml, handle, part), uuid=names[-1] if number == 0 else uuid)))
    return found


def _mig_slices(nvml: Any, handle: Any) -> Iterator[Any]:
    current, _ = _ask(nvml, nvml.nvmlDeviceGetMigMode, handle, default=(0, 0))
    if not current:
        return
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        part = _ask(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number, default=None)
        if part is not None:
            yield part


def _card(nvml: Any, handle: Any, host: HostMemory) -> Device:
    name = _decoded(nvml.nvmlDeviceGetName(handle)).removesuffix(" ")
    capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
    total_bytes, used_bytes = _memory(nvml, handle, name, host)
    cores = _ask(nvml, nvml.nvmlDeviceGetNumGpuCores, handle, default=0)
    return Device(
        name=name,
        kind="cuda",
        total_bytes=total_bytes,
        used_by_others_bytes=used_bytes,
        sm_count=cores // _CORES_PER_SM.get(capability, 128),
        bandwidth_bytes_per_s=_bandwidth(nvml, handle),
        formats=formats_of(capability),
        compute_capability=capability,
    )


def _slice(nvml: Any, handle: Any, part: Any) -> Device:
    attributes = nvml.nvmlDeviceGetAttributes_v2(part)
    capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
    memory = nvml.nvmlDeviceGetMemoryInfo(part)
    share = attributes.memorySizeMB * _MIB / nvml.nvmlDeviceGetMemoryInfo(handle).total
    return Device(
        name=_decoded(nvml.nvmlDeviceGetName(part)),
        kind="cuda",
        total_bytes=memory.total,
        used_by_others_bytes=memory.used,
        sm_count=attributes.multiprocessorCount,
        bandwidth_bytes_per_s=round(_bandwidth(nvml, handle) * min(1.0, share)),
        formats=formats_of(capability),
        compute_capability=capability,
    )


def _memory(nvml: Any, handle: Any, name: str, host: HostMemory) -> tuple[int, int]:
    """(total, used) as CUDA counts them: NVML's total less what the driver reserves, which CUDA never shows.

    The reservation that NVML tells differs from CUDA's by up to 0.3 GiB, so a total seen by torch on the same card
    (configs/gpus.toml) caps it.
    """
    info = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2, default=None)
    if info is not None:
        total_bytes, used_bytes = info.total - info.reserved, info.used
    elif (info := _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, default=None)) is not None:
        total_bytes, used_bytes = info.total, info.used
    else:
        return host.total_bytes, max(0, host.total_bytes - host.available_bytes)
    seen = [device.total_bytes for device in known_gpus().values() if device.name == name]
    near = [total for total in seen if 0 <= total_bytes - total < 0.02 * total_bytes]
    return min(near, default=total_bytes), used_bytes


def _bandwidth(nvml: Any, handle: Any) -> int:
    """Bus width × memory clock × 2 (double data rate); 0 where the driver does not tell."""
    clock_mhz = _ask(nvml, nvml.nvmlDeviceGetMaxClockInfo, handle, _CLOCK_MEMORY, default=0)
    width_bits = _ask(nvml, nvml.nvmlDeviceGetMemoryBusWidth, handle, default=0)
    return int(clock_mhz * 1_000_000 * 2 * width_bits // 8)


def _visible(seen: list[_Named], variable: str) -> list[_Named]:
    """CUDA's own rule: in the order given, up to the first entry that names no card; a UUID may be cut short."""
    chosen = []
    for entry in (part.strip() for part in variable.split(",")):
        match = [card for card in seen if any(_names(name, entry) for name in card[0])]
        if not match:
            break
        chosen.append(match[0])
    return chosen


def _one_slice(cards: list[_Named]) -> list[_Named]:
    """CUDA shows one MIG slice to a process, and none beside whole cards.

    Source: NVIDIA Multi-Instance GPU User Guide, "CUDA Device Enumeration".
    """
    whole = [card for card in cards if not _is_slice(card)]
    return whole or cards[:1]


def _is_slice(card: tuple[tuple[str, ...], Device]) -> bool:
    return card[0][0].startswith("MIG-")


def _names(name: str, entry: str) -> bool:
    return name == entry or (entry.startswith(("GPU-", "MIG-")) and name.startswith(entry))


def _notes(seen: list[Any], chosen: list[Any], environ: Mapping[str, str]) -> Iterator[str]:
    if any(_is_slice(card) for card in seen) and len(chosen) < len(seen):
        yield f"{len(seen)} cards and MIG slices; a process sees one slice: CUDA_VISIBLE_DEVICES=MIG-… chooses which"
    elif len(chosen) < len(seen):
        yield f"CUDA_VISIBLE_DEVICES={environ.get('CUDA_VISIBLE_DEVICES')!r} leaves {len(chosen)} of {len(seen)} cards"
    names = {device.name for _, device in seen}
    if len(names) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        yield "the cards differ and are listed in PCI order; set CUDA_DEVICE_ORDER=PCI_BUS_ID so that CUDA agrees"
    for _, device in chosen:
        if device.used_by_others_bytes > 0.01 * device.total_bytes:
            yield f"{device.name}: {format_bytes(device.used_by_others_bytes)} is held by other processes"


def _ask(nvml: Any, function: Callable[..., Any], *arguments: Any, default: Any) -> Any:
    """`function`'s answer, or `default` where this card or driver does not know the question."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return default


def _decoded(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
