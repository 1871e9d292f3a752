"""Cards of other makers by their own tools: rocm-smi, xpu-smi and npu-smi where they are on PATH, sysctl on macOS.

Asked only where NVML found no card, so that nothing is slower on other machines. A card counts where an engine of
qserve can compute on it: an AMD card that a table of configs/ has, beside a torch with ROCm. Any other is named in a
note, and the machine serves on its CPU.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from qserve.core.hardware import Device, known_gpu, known_gpus
from qserve.core.plan_only import backend_of, gpu_share_bytes, usable_bytes
from qserve.detect.host import HostMemory
from qserve.units import GIB, MIB

__all__ = ["SeenCard", "of_npu_smi", "of_rocm_smi", "of_sysctl", "of_xpu_smi", "read_devices"]

_MOST_SECONDS = 5.0
_SHOWN_BY = {"rocm-smi": "HIP_VISIBLE_DEVICES", "xpu-smi": "ZE_AFFINITY_MASK", "npu-smi": "ASCEND_RT_VISIBLE_DEVICES"}
_SYSCTL = ("sysctl", "machdep.cpu.brand_string", "hw.memsize", "iogpu.wired_limit_mb")

Ask = Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class SeenCard:
    """A card as its maker's tool names it; bytes are 0 where it does not say."""

    name: str
    total_bytes: int = 0
    used_bytes: int = 0


def read_devices(
    environ: Mapping[str, str],
    host: HostMemory,
    *,
    has_rocm: bool,
    ask: Ask | None = None,
    find: Callable[[str], str | None] = shutil.which,
    platform: str = sys.platform,
) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Cards of the first maker whose tool is there and names one, and notes on what is not counted.

    `environ` gives the variables by which each maker's runtime shows fewer cards. `has_rocm`: the installed torch
    computes on AMD's cards. `host` bounds what a GPU takes of the RAM.
    """
    notes: list[str] = []
    for command, read in _tools(platform):
        if find(command[0]) is None:
            continue
        try:
            seen = _visible(list(read((ask or _ask)(command))), environ.get(_SHOWN_BY.get(command[0], "")))
        except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
            notes.append(
                f"{command[0]} is here and does not answer ({_first_line(error)}): none of its cards is counted"
            )
            continue
        devices = []
        for card in seen:
            device, note = _counted(card, host, command[0], has_rocm)
            devices += [device] if device is not None else []
            notes += [note] if note else []
        if devices:
            return tuple(devices), tuple(notes)
    return (), tuple(dict.fromkeys(notes))


def _tools(platform: str) -> Iterator[tuple[Sequence[str], Callable[[str], Iterator[SeenCard]]]]:
    if platform == "darwin":
        yield _SYSCTL, of_sysctl
        return
    yield ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json"), of_rocm_smi
    yield ("xpu-smi", "discovery", "--dump", "1,2,16"), of_xpu_smi
    yield ("npu-smi", "info"), of_npu_smi


def _visible(seen: list[SeenCard], variable: str | None) -> list[SeenCard]:
    """Those whose numbers the variable names, in its order; all where it is not set. A tile's number is its card's."""
    if variable is None:
        return seen
    numbers = (entry.strip().partition(".")[0] for entry in variable.split(","))
    return [seen[int(number)] for number in numbers if number.isdigit() and int(number) < len(seen)]


def _counted(card: SeenCard, host: HostMemory, tool: str, has_rocm: bool) -> tuple[Device | None, str]:
    """The device, or a note why it is none."""
    known = known_gpu(card.name)
    if known is None:
        return None, (
            f"{tool} names {card.name}, which no table of qserve has: it is not counted; --gpu memory=SIZE describes it"
        )
    total = usable_bytes(known.name, card.total_bytes) or known.total_bytes
    total = min(total, host.total_bytes) if known.kind == "mps" else total
    if known.is_plan_only:
        reason = backend_of(known.kind).why_no_engine(known.name)
        return None, f"{reason}: models run on the CPU here; --gpu {_flag_of(known, total)} plans for the card"
    if not has_rocm:
        return None, (
            f"{tool} names {known.name}, and the installed torch has no ROCm: it is not counted; --gpu plans for it by "
            "its name"
        )
    return replace(known, total_bytes=total, used_by_others_bytes=min(card.used_bytes, total)), ""


def _flag_of(known: Device, total_bytes: int) -> str:
    """What --gpu takes for the card with so much memory."""
    key = next(key for key, card in known_gpus().items() if card.name == known.name)
    return key if total_bytes == known.total_bytes else f"like={key},memory={total_bytes // MIB}MiB"


def of_rocm_smi(text: str) -> Iterator[SeenCard]:
    """Of `--showproductname --showmeminfo vram --json`, before which warnings may stand."""
    start = text.find("{")
    if start < 0:
        return
    for name, row in json.loads(text[start:]).items():
        if not name.startswith("card"):
            continue
        series = next(
            (row[key] for key in ("Card Series", "Card series", "Device Name") if row.get(key)), "an AMD card"
        )
        total, used = row.get("VRAM Total Memory (B)", 0), row.get("VRAM Total Used Memory (B)", 0)
        yield SeenCard(str(series), int(total), int(used))


def of_xpu_smi(text: str) -> Iterator[SeenCard]:
    """Of `discovery --dump 1,2,16`: a head line, and for each card its number, its name and its memory in MiB."""
    rows = [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if len(row) >= 3]
    for _, name, size, *_ in rows[1:]:
        found = re.match(r"[\d.]+", size)
        yield SeenCard(name.strip(), int(float(found[0]) * MIB) if found else 0)


_NPU_NAME = re.compile(r"\|\s*\d+\s+(\S+)\s*\|\s*(?:OK|Warning|Alarm|Critical|UNKNOWN)\b")


def of_npu_smi(text: str) -> Iterator[SeenCard]:
    """Of `info`: two lines a chip, its name in the first, memory in use and in all last in the second (MB are MiB)."""
    name = ""
    for line in text.splitlines():
        if found := _NPU_NAME.match(line):
            name = found[1]
            continue
        *_, used, slash, total = ("", "", "", *line.rstrip("| ").rpartition("|")[2].replace("/", " / ").split())
        if name and slash == "/" and used.isdigit() and total.isdigit():
            yield SeenCard(name, int(total) * MIB, int(used) * MIB)
            name = ""


def of_sysctl(text: str) -> Iterator[SeenCard]:
    """Of the keys of `_SYSCTL`: the chip beside its RAM, of which the GPU takes the limit that is set, or a share."""
    values = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    chip, ram = values.get("machdep.cpu.brand_string", "").strip(), int(values.get("hw.memsize", 0))
    if not chip.startswith("Apple ") or not ram:  # a Mac with an Intel processor has none
        return
    limit = int(values.get("iogpu.wired_limit_mb", 0)) * MIB
    yield SeenCard(f"{chip} {round(ram / GIB)} GB", limit or gpu_share_bytes(ram))


def _ask(command: Sequence[str]) -> str:
    """What the tool prints. Raises OSError or SubprocessError where it does not answer within seconds.

    sysctl ends with an error where it lacks one of the keys, and prints the others.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False)
    if done.returncode and not done.stdout.strip():
        raise OSError(_first_line(done.stderr) or f"exit status {done.returncode}")
    return done.stdout


def _first_line(error: object) -> str:
    return next(iter(str(error).strip().splitlines()), "")
