"""Cards of other makers by their own tools: rocm-smi, xpu-smi and npu-smi where they are on PATH, sysctl on macOS.

Asked only where NVML found no card, so that nothing is slower on other machines. A card counts where an engine of
qserve can compute on it: an AMD card that a table of configs/ has, beside a torch with ROCm. Any other is named in a
note, and the machine serves on its CPU.
"""

from __future__ import annotations

import csv
import difflib
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
# By these a runtime shows fewer cards: in their order, each numbers what the one before it left. Of several names the
# first that is set counts. Source: https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html (HIP reads CUDA's,
# too).
_SHOWN_BY = {
    "rocm-smi": (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
    "xpu-smi": (("ZE_AFFINITY_MASK",),),
    "npu-smi": (("ASCEND_RT_VISIBLE_DEVICES",),),
}
_ODD = (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError, AttributeError)
"""What comes of a tool that does not run, or prints something else than its makers document."""
_SYSCTL = ("sysctl", "machdep.cpu.brand_string", "hw.memsize", "iogpu.wired_limit_mb")

Ask = Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class SeenCard:
    """A card as its maker's tool names it; bytes are 0 where it does not say.

    `ram_bytes` is what it may take of the machine's RAM, where the tool says it; `uuid` is under which a variable may
    ask for it.
    """

    name: str
    total_bytes: int = 0
    used_bytes: int = 0
    ram_bytes: int = 0
    uuid: str = ""


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
            seen = list(read((ask or _ask)(command)))
        except _ODD as error:
            notes.append(
                f"{command[0]} is here and does not answer ({_first_line(error)}): none of its cards is counted"
            )
            continue
        devices = []
        for card in _shown(seen, command[0], environ):
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
    yield ("rocm-smi", "--showproductname", "--showuniqueid", "--showmeminfo", "vram", "gtt", "--json"), of_rocm_smi
    yield ("xpu-smi", "discovery", "--dump", "1,2,16"), of_xpu_smi
    yield ("npu-smi", "info"), of_npu_smi


def _shown(seen: list[SeenCard], tool: str, environ: Mapping[str, str]) -> list[SeenCard]:
    """What the maker's runtime shows of the cards."""
    for names in _SHOWN_BY.get(tool, ()):
        seen = _visible(seen, next((environ[name] for name in names if name in environ), None))
    return seen


def _visible(seen: list[SeenCard], variable: str | None) -> list[SeenCard]:
    """Those that the variable names by number or UUID, in its order, up to the first that is not there; all where it is
    not set. A tile's number is its card's.
    """
    if variable is None:
        return seen
    numbered = {str(number): card for number, card in enumerate(seen)}
    named = {**numbered, **{card.uuid.lower(): card for card in seen if card.uuid}}
    shown: list[SeenCard] = []
    for entry in variable.split(","):
        card = named.get(entry.strip().partition(".")[0].lower())
        if card is None:
            break
        shown.append(card)
    return shown


def _counted(card: SeenCard, host: HostMemory, tool: str, has_rocm: bool) -> tuple[Device | None, str]:
    """The device, or a note why it is none."""
    known = known_gpu(card.name)
    if known is None:
        return None, (
            f"{tool} names {card.name}, which no table of qserve has: it is not counted; --gpu "
            f"{_flag_like(card, tool)} plans for one like it"
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
    return _on_this(known, card, host, total), ""


def _on_this(known: Device, card: SeenCard, host: HostMemory, total: int) -> Device:
    """An AMD card with its memory. One that shares the RAM has what Linux lets it take of that, or the part that the
    firmware keeps for it, whichever is more: HIP shows no sum of both.

    Source: https://github.com/ROCm/rocm-systems/pull/8475 (0.5 GiB kept, 110 GiB of RAM, HIP's total 110 GiB) and
    https://github.com/ROCm/legacy-rocm-build/issues/6004.
    """
    used, ram = card.used_bytes, min(card.ram_bytes, host.total_bytes)
    if known.shares_ram and ram > card.total_bytes:
        total, used = ram, ram - host.available_bytes
    return replace(known, total_bytes=total, used_by_others_bytes=max(0, min(used, total)))


def _by_key() -> dict[str, Device]:
    """Every card once, under its key."""
    first: dict[str, Device] = {}
    for key, card in known_gpus().items():
        if card not in first.values():
            first[key] = card
    return first


_LEAST_OF_A_CARD = 2 * GIB
_OF_TOOL = {"rocm-smi": "cuda", "xpu-smi": "xpu", "npu-smi": "npu", "sysctl": "mps"}


def _flag_like(card: SeenCard, tool: str) -> str:
    """What --gpu takes for a card that no table has: as much memory on the known card of its maker that is nearest."""
    kind = _OF_TOOL[tool]
    others = {key: one for key, one in _by_key().items() if one.kind == kind and one.compute_capability is None}
    name, total = card.name.lower().replace(" ", "-"), card.total_bytes
    if total < _LEAST_OF_A_CARD and card.ram_bytes:  # a processor's own GPU, which has its memory in RAM
        others, total = {key: one for key, one in others.items() if one.shares_ram}, card.ram_bytes
    if kind == "mps":
        alike = {key: difflib.SequenceMatcher(None, name, f"apple-{key}").ratio() for key in others}
        key = max(reversed(alike), key=alike.__getitem__)  # the newest of those that are alike
    else:
        key = min(others, key=lambda one: abs(others[one].total_bytes - total))
    return f"like={key},memory={total // MIB}MiB" if total else f"like={key}"


def _flag_of(known: Device, total_bytes: int) -> str:
    """What --gpu takes for the card with so much memory."""
    key = next(key for key, card in known_gpus().items() if card.name == known.name)
    return key if total_bytes == known.total_bytes else f"like={key},memory={total_bytes // MIB}MiB"


def of_rocm_smi(text: str) -> Iterator[SeenCard]:
    """Of `--showproductname --showmeminfo vram --json`, before which warnings may stand."""
    start = text.find("{")
    if start < 0:
        return
    for name, row in dict(json.loads(text[start:])).items():
        if not name.startswith("card") or not isinstance(row, dict):
            continue
        keys = ("Card Series", "Card series", "Device Name", "Card Model", "Card model")
        series = next((str(row[key]) for key in keys if row.get(key) not in (None, "", "N/A")), "an AMD card")
        total, used = _number(row.get("VRAM Total Memory (B)")), _number(row.get("VRAM Total Used Memory (B)"))
        unique = str(row.get("Unique ID", "")).lower().removeprefix("0x")
        uuid = f"GPU-{unique}" if re.fullmatch("[0-9a-f]+", unique) else ""
        yield SeenCard(series, total, used, _number(row.get("GTT Total Memory (B)")), uuid)


def _number(value: object) -> int:
    """A tool's count of bytes; 0 where it prints none, as N/A."""
    text = str(value).strip()
    return int(text) if text.isascii() and text.isdigit() else 0


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
