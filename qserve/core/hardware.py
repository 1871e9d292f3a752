"""What we compute on: one `Device` per accelerator (or the CPU as one device), and the machine around them.

`parse_gpu` describes cards that are not there; `qserve.detect` describes the ones that are.
Card facts (driver's total, SMs, bandwidth, compute capability, each with its source) stand in configs/gpus.toml; those
of cards that no engine of qserve runs on in configs/plan_only.toml.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from qserve.core.facts import load
from qserve.core.plan_only import PLAN_ONLY_KINDS, plan_only_rows, refuse_without_ram
from qserve.errors import UsageError
from qserve.units import MIB, parse_bytes

__all__ = [
    "CpuFeatures",
    "Device",
    "Hardware",
    "HostProcess",
    "formats_of",
    "known_gpu",
    "known_gpus",
    "parse_gpu",
    "usual_gpus",
]

# Whose card a name means, by rows of [makers] in configs/plan_only.toml.
_MAKER = re.compile(
    r"(?<![a-z])(?:(?P<intel>intel|arc)|(?P<huawei>huawei|ascend)|(?P<apple>apple|m\d{1,2}-(?:pro|max|ultra))|"
    r"(?P<instinct>instinct|mi\d{2,3})|(?P<amd>amd(?! instinct)|radeon))"
)

_LEAST_BYTES = 64 * MIB  # no card has less: a number without its unit
_DESCRIPTION_KEYS = ("memory", "sm", "count", "bandwidth", "cc", "used", "name", "like")


@dataclass(frozen=True)
class Device:
    """One place that holds tensors.

    `total_bytes` is the driver's total (what torch and vLLM multiply the memory fraction with), not the box's figure.
    `used_by_others_bytes` is held by processes that are not ours at the time of looking.
    `sm_count` is 0 for a CPU and where it is unknown; `bandwidth_bytes_per_s` is 0 where it is unknown.
    `kind` is torch's name of such a device (AMD's cards are cuda, too): cuda and cpu are what engines of qserve run on.
    `formats` are the number formats with arithmetic of their own: fp16, bf16, fp8, fp4, int8.
    `compute_capability` is None on a CPU and on an AMD card.
    `schemes` are the quantizations that what serves on it has, of a card that is planned for only.
    `model` is the table's name of a card that is described by it and has another `name`.
    `uuid` is the driver's name of a card that is here, under which CUDA_VISIBLE_DEVICES asks for it.
    `kept_free_bytes` is what a service leaves of a memory that is the RAM as well (planner/memory/host.py).
    """

    name: str
    kind: Literal["cuda", "cpu", "xpu", "npu", "mps"]
    total_bytes: int
    used_by_others_bytes: int = 0
    sm_count: int = 0
    bandwidth_bytes_per_s: int = 0
    formats: tuple[str, ...] = ()
    compute_capability: tuple[int, int] | None = None
    uuid: str = ""
    schemes: tuple[str, ...] = ()
    model: str = ""
    kept_free_bytes: int = 0

    @property
    def known_as(self) -> str:
        """What a table calls it, whatever it is named here: its speed and price are found by that."""
        return self.model or self.name

    @property
    def is_plan_only(self) -> bool:
        """Whether it can be planned for, and no engine of qserve runs on it."""
        return self.kind in PLAN_ONLY_KINDS

    @property
    def available_bytes(self) -> int:
        """What is left for us: total less what others hold and what stays free, never negative."""
        return max(0, self.total_bytes - self.used_by_others_bytes - self.kept_free_bytes)

    @property
    def shares_ram(self) -> bool:
        """Whether its memory is the machine's RAM: Apple's chips, NVIDIA's by compute capability (Jetson Orin 8.7 and
        Thor 11.0, GB10 12.1), AMD's by their rows (Strix Halo).
        """
        return self.kind == "mps" or self.compute_capability in _share_ram() or self.known_as in _named_to_share_ram()

    def supports(self, number_format: str) -> bool:
        """Whether the device computes in `number_format` (fp16, bf16, fp8, fp4, int8) natively."""
        return number_format in self.formats


@dataclass(frozen=True)
class CpuFeatures:
    """What decides how fast (and whether) a CPU runs a format: flags as Linux spells them in /proc/cpuinfo."""

    model_name: str = ""
    flags: frozenset[str] = frozenset()

    @property
    def formats(self) -> tuple[str, ...]:
        """Formats with instructions of their own on this CPU."""
        names = [("bf16", {"avx512_bf16", "amx_bf16", "bf16"}), ("fp16", {"avx512_fp16", "fphp"})]
        names.append(("int8", {"avx512_vnni", "avx_vnni", "amx_int8", "i8mm"}))
        return tuple(name for name, flags in names if flags & self.flags)

    @property
    def has_own_products(self) -> bool:
        """Whether layers in bf16 are multiplied by our own C (model/cpu/linear.py: takes_bfloat16)."""
        return "avx512_vnni" in self.flags or {"avx2", "fma"} <= self.flags


@dataclass(frozen=True)
class HostProcess:
    """A process of the service that holds no model, and the RAM that is expected of it, within a band."""

    name: str
    num_bytes: int
    low_bytes: int
    high_bytes: int
    source: str


@dataclass(frozen=True)
class Hardware:
    """The machine: its accelerators (none on a CPU machine), RAM and cores as far as we may use them.

    `ram_total_bytes` and `cpu_cores` are after cgroup limits, cpuset and affinity. `ram_available_bytes` is what
    can be taken now without pushing anybody out. `disk_free_bytes` is for offload; 0 where nobody asked.
    `notes` are sentences for people about what was found odd (a MIG slice, a hidden card, a driver without cards).
    `packages` are the installed ones by distribution name; None of a machine that is described, not looked at.
    `host`: what of the service runs in this RAM beside the models; it is taken from what they may have.
    `torch_has_cuda`: the installed torch brings CUDA's libraries, which its processes load on a CPU, too.
    `numa_nodes`: memory nodes with cores of their own; threads that span several read from the far one.
    """

    devices: tuple[Device, ...]
    ram_total_bytes: int
    ram_available_bytes: int
    cpu_cores: int
    cpu: CpuFeatures = CpuFeatures()
    disk_free_bytes: int = 0
    notes: tuple[str, ...] = ()
    packages: frozenset[str] | None = None
    numa_nodes: int = 1
    host: tuple[HostProcess, ...] = ()
    torch_has_cuda: bool = False

    @property
    def plan_only(self) -> Device | None:
        """The first card that no engine of qserve runs on; None where engines run on all."""
        return next((device for device in self.devices if device.is_plan_only), None)

    @property
    def is_described(self) -> bool:
        """Whether its cards are somewhere else: then RAM and cores are those of the machine that plans."""
        return bool(self.devices) and self.packages is None

    @property
    def ram_for_models_bytes(self) -> int:
        """RAM that can be taken now, less what the service's other processes will hold; never negative."""
        return max(0, self.ram_available_bytes - self.host_bytes)

    @property
    def host_bytes(self) -> int:
        """Of all processes of `host`."""
        return sum(process.num_bytes for process in self.host)

    @property
    def cpu_device(self) -> Device:
        """RAM seen as a device, for plans that run on the CPU."""
        used = max(0, self.ram_total_bytes - self.ram_for_models_bytes)
        name = self.cpu.model_name or "cpu"
        return Device(name, "cpu", self.ram_total_bytes, used, formats=self.cpu.formats)


def formats_of(compute_capability: tuple[int, int]) -> tuple[str, ...]:
    """Formats with tensor-core (or DP4A) arithmetic, by NVIDIA compute capability: configs/gpus.toml."""
    since = load("gpus")["capabilities"]["formats"]
    return tuple(name for name, first in since.items() if compute_capability >= tuple(first))


@cache
def _share_ram() -> frozenset[tuple[int, ...]]:
    return frozenset(map(tuple, load("gpus")["capabilities"]["shares_ram"]))


@cache
def _named_to_share_ram() -> frozenset[str]:
    return frozenset(row["name"] for row in load("gpus")["gpus"].values() if row.get("shares_ram", False))


@cache
def known_gpus() -> dict[str, Device]:
    """Every card of both tables under its key, each of its aliases and the driver's own name."""
    rows = _rows()
    return {name: _device_of_row(rows[key]) for name, key in _keys_by_name().items()}


def known_gpu(name: str) -> Device | None:
    """The card that a driver or a tool calls so; None where no table has it."""
    return known_gpus().get(_normal(name))


@cache
def usual_gpus() -> dict[str, Device]:
    """What people can get, by size: the cards that a suggestion may name."""
    return {key: known_gpus()[key] for key in load("gpus")["usual"]["cards"]}


def _rows() -> dict[str, dict[str, Any]]:
    return {**load("gpus")["gpus"], **plan_only_rows()}


@cache
def _keys_by_name() -> dict[str, str]:
    rows = _rows().items()
    return {name: key for key, row in rows for name in (key, *row["aliases"], _normal(row["name"]))}


def parse_gpu(text: str) -> tuple[Device, ...]:
    """Devices of 'rtx-4090:2', 'h100-80gb' or 'memory=23.6GiB,sm=128[,count=2,bandwidth=1008GB,cc=8.9,used=1GiB]'.

    A described card without cc= counts as Ampere (8.0: fp16, bf16, int8); with like= as that card, but for what else is
    said: 'like=m4-max-64gb,memory=56GiB'. Raises UsageError, with near matches.
    """
    if "=" in text:
        return _described(text)
    name, _, count = text.partition(":")
    return (_known(name),) * _positive_int("the count after ':'", count or "1", text)


def _known(name: str) -> Device:
    wanted, keys = _normal(name), _keys_by_name()
    if wanted in keys:
        return known_gpus()[wanted]
    refuse_without_ram(wanted)
    close = difflib.get_close_matches(wanted, keys, n=6, cutoff=0.5) or [
        key for key in keys if wanted and wanted in key
    ]
    near = list(dict.fromkeys(keys[match] for match in close))[:4]
    hint = "near matches" if near else "known are for example"
    named = near or load("gpus")["usual"]["examples"]
    raise UsageError(
        f"--gpu {name!r} is not a card of configs/gpus.toml; {hint}: {', '.join(named)}. "
        f"Any card can be described: --gpu {_example(name, near)}"
    )


def _example(name: str, near: list[str]) -> str:
    """A description of an unknown card: by one of its maker where it is not NVIDIA's."""
    said = name.lower()
    makers = load("plan_only")["makers"]
    found = _MAKER.search(said)
    like = makers[found.lastgroup] if found is not None else None
    others = [key for key in near if known_gpus()[key].compute_capability is None]
    if like is None and others and others[0] == near[0]:
        like = others[0]
    return f"like={like},memory=24GiB" if like else "memory=23.6GiB,sm=128"


def _described(text: str) -> tuple[Device, ...]:
    fields: dict[str, str] = {}
    for part in text.split(","):
        key, separator, value = part.partition("=")
        if not separator or key.strip() not in _DESCRIPTION_KEYS or key.strip() in fields:
            raise UsageError(
                f"--gpu {text!r}: can't read {part!r}; a description is key=value pairs, each once, of "
                f"{', '.join(_DESCRIPTION_KEYS)}; for example memory=23.6GiB,sm=128,count=2"
            )
        fields[key.strip()] = value.strip()
    like = _known(fields["like"]) if "like" in fields else None
    if "memory" not in fields and like is None:
        raise UsageError(f"--gpu {text!r} names no memory; write for example memory=23.6GiB,sm=128")
    memory = fields.get("memory", "")
    total_bytes = parse_bytes(memory) if memory or like is None else like.total_bytes
    used_bytes = parse_bytes(fields.get("used", "0"))
    if not 0 <= used_bytes <= total_bytes or total_bytes == 0:
        raise UsageError(f"--gpu {text!r}: memory must be above 0 and at least as large as used")
    if total_bytes < _LEAST_BYTES:
        raise UsageError(f"--gpu {text!r}: memory={memory} is {total_bytes} bytes; write for example 24GiB")
    device = like or _ampere(f"{memory} card")
    device = replace(device, total_bytes=total_bytes, used_by_others_bytes=used_bytes)
    if not fields.get("name", device.name):
        raise UsageError(f"--gpu {text!r}: name= is empty; write for example name=mine, or leave it out")
    if "cc" in fields:
        if like is not None and like.compute_capability is None:
            raise UsageError(f"--gpu {text!r}: {device.name} has no compute capability; leave cc= out")
        capability = _capability(fields["cc"], text)
        device = replace(device, formats=formats_of(capability), compute_capability=capability)
    if "bandwidth" in fields:
        device = replace(device, bandwidth_bytes_per_s=parse_bytes(re.sub(r"/s$", "", fields["bandwidth"])))
    if "sm" in fields:
        device = replace(device, sm_count=_positive_int("sm", fields["sm"], text))
    if "name" in fields:
        device = replace(device, name=fields["name"], model=like.known_as if like is not None else "")
    return (device,) * _positive_int("count", fields.get("count", "1"), text)


def _ampere(name: str) -> Device:
    """What a description without like= begins with."""
    major, minor = load("gpus")["capabilities"]["described"]
    return Device(name, "cuda", 0, formats=formats_of((major, minor)), compute_capability=(major, minor))


def _capability(value: str, text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)\.(\d)", value)
    if match is None:
        raise UsageError(f"--gpu {text!r}: cc={value!r} is not a compute capability; write for example cc=8.9")
    return int(match[1]), int(match[2])


def _positive_int(what: str, value: str, text: str) -> int:
    if not value.isascii() or not value.isdigit() or not 0 < int(value) <= 4096:
        raise UsageError(f"--gpu {text!r}: {what} is {value!r}, but must be a whole number from 1 to 4096")
    return int(value)


def _normal(name: str) -> str:
    """'NVIDIA GeForce RTX 4090' and 'rtx_4090' both name rtx-4090; 'Intel(R) Arc(TM) Pro B60 Graphics' arc-pro-b60.

    Releases of ROCm name a card with and without its line and its form: 'AMD Radeon Pro W7900 Dual Slot' is w7900.
    """
    words = re.sub(r"[\s_]+", "-", re.sub(r"\((r|tm)\)", "", name.strip().lower()))
    words = re.sub(r"^(nvidia|amd|intel|huawei|apple)-", "", words)
    words = re.sub(r"^(geforce-|instinct-|radeon-)?((ai-)?pro-(?=[rw]\d{4}))?", "", words)
    return re.sub(r"-(graphics|oam|vf|dual-slot)$", "", re.sub(r"(?<=\d)-gb$", "gb", words))


def _device_of_row(row: dict[str, Any]) -> Device:
    capability = (int(row["cc"].split(".")[0]), int(row["cc"].split(".")[1])) if "cc" in row else None
    return Device(
        name=row["name"],
        kind=row.get("kind", "cuda"),
        total_bytes=row["total_mib"] * MIB,
        sm_count=row["sm_count"],
        bandwidth_bytes_per_s=int(row["bandwidth_gb_per_s"] * 1e9),
        formats=tuple(row["formats"]) if "formats" in row else formats_of(capability) if capability else (),
        compute_capability=capability,
        schemes=tuple(row.get("schemes", ())),
    )
