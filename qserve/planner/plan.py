"""`Plan`: the one frozen object that loader, supervisor and report read. Its JSON is a contract (docs/cli.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from qserve.core.hardware import Device, HostProcess
from qserve.core.workload import Workload
from qserve.planner.calibration import Correction
from qserve.planner.term import COLUMNS, Term, columns_of
from qserve.units import format_bytes, format_ms, format_rate

__all__ = ["USABLE_TPOT_MS", "DevicePlan", "ModelSummary", "Placement", "Plan", "QuantChoice", "Suggestion", "Term"]

DeviceMap = dict[str, int | str]
"""Module name to device: an accelerator's index, "cpu" or "disk", as accelerate writes it."""


@dataclass(frozen=True)
class ModelSummary:
    """`kv_bytes_per_token` is of the KV cache over all layers and ranks; `parameters` counts every tensor once.

    `revision` is the hub's commit that the figures were read at; None of a folder, and of bundled dimensions.
    """

    id: str
    architecture: str
    parameters: int
    kv_bytes_per_token: int = 0
    revision: str | None = None


@dataclass(frozen=True)
class QuantChoice:
    """`checkpoint` is what to load: the model itself, or a sibling that somebody quantized already.

    `in_flight`: the engine quantizes while loading. `reason` is for people.
    """

    scheme: str
    checkpoint: str
    in_flight: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Placement:
    """Where the model goes: over ranks (parallel sizes, both memory settings), or module by module (device_map).

    `device_map` is None, "auto", or accelerate's map of modules. `kv_cache_memory_bytes` is per device, and of a
    plan by modules the whole pool; `offloaded_bytes` are weights in "cpu" and on "disk" that compute on a card, or
    whose rows a card reads where they lie.
    `head_copy_bytes` is a CPU's copy of the head in int8, which steps of few sequences read first (core/shortlist.py).
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    device_map: DeviceMap | str | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int = 0
    offloaded_bytes: dict[str, int] = field(default_factory=dict)
    head_copy_bytes: int = 0

    @property
    def num_ranks(self) -> int:
        """Cards of one server."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


@dataclass(frozen=True)
class DevicePlan:
    """The estimate of one device: the five columns, what others use and `free_bytes` sum to `total_bytes`.

    Each column is the sum of the `terms` that belong to it.

    `runtime_bytes` is what belongs to nobody's tensors: CUDA context, NCCL, libraries, the Python process.
    `used_by_others_bytes` is held by other processes, or stays free for them where the device shares the RAM.
    `free_bytes` is negative where the plan does not fit.
    """

    name: str
    total_bytes: int
    weights_bytes: int
    kv_cache_bytes: int
    activations_bytes: int
    cuda_graphs_bytes: int
    runtime_bytes: int
    free_bytes: int
    used_by_others_bytes: int = 0
    terms: tuple[Term, ...] = ()

    @property
    def held_bytes(self) -> int:
        """What the plan takes there: the sum of its five columns."""
        return sum(getattr(self, f"{name}_bytes") for name in COLUMNS)

    @classmethod
    def of(cls, device: Device, terms: Sequence[Term]) -> DevicePlan:
        """`device` with what `terms` say is held there; without any it is not touched."""
        columns = columns_of(terms)
        others = device.used_by_others_bytes + device.kept_free_bytes
        free = device.total_bytes - others - sum(columns.values())
        return cls(
            name=device.name,
            total_bytes=device.total_bytes,
            **{f"{name}_bytes": num_bytes for name, num_bytes in columns.items()},
            free_bytes=free,
            used_by_others_bytes=others,
            terms=tuple(terms),
        )


USABLE_TPOT_MS = 200.0
"""An answer that grows slower than this is slower than people read: 238 words a minute (Brysbaert 2019), 1.3 tokens a
word."""


@dataclass(frozen=True)
class Suggestion:
    """A change after which the plan fits: what to do, what it costs, and the command that does it.

    `output_tokens_per_s` and `tpot_ms` are of one stream; None where no speed is planned.
    """

    change: str
    cost: str
    command: str
    output_tokens_per_s: float | None = None
    tpot_ms: float | None = None

    @property
    def is_usable(self) -> bool:
        """Whether it is fast enough to chat, as far as is known."""
        return self.tpot_ms is None or self.tpot_ms <= USABLE_TPOT_MS

    @property
    def speed(self) -> str:
        """For people: '41 tokens/s', '16.4 s a token, too slow to chat'; empty where it is not known."""
        if self.output_tokens_per_s is None or self.tpot_ms is None:
            return ""
        if self.output_tokens_per_s >= 1:
            told = f"{format_rate(self.output_tokens_per_s)} tokens/s"
        else:
            told = f"{format_ms(self.tpot_ms)} a token"
        return told if self.is_usable else f"{told}, too slow to chat"

    @property
    def title(self) -> str:
        """The change with the speed after it."""
        return ": ".join(filter(None, (self.change, self.speed)))


@dataclass(frozen=True, repr=False)
class Plan:
    """All that was decided. `fits` is False with a sentence in `why_not` and suggestions in `suggestions`."""

    model: ModelSummary
    engine: str
    engine_version: str
    quant: QuantChoice
    dtype: str
    kv_cache_dtype: str
    workload: Workload
    placement: Placement
    devices: tuple[DevicePlan, ...]
    kv_cache_tokens: int
    max_concurrency: float
    fits: bool
    why_not: str | None = None
    suggestions: tuple[Suggestion, ...] = ()
    short_bytes: int = 0
    notes: tuple[str, ...] = ()
    explanations: tuple[str, ...] = ()
    """What people get wrong, with this plan's numbers; printed by --explain."""
    engine_args: tuple[str, ...] = field(default=())
    """The engine's command-line arguments that put this plan into effect."""
    shape: str = ""
    step: str = ""
    """What a measurement of this plan holds for: the same model and layout, the same step (planner/calibrate.py)."""
    on_cpu: bool = False
    """Whether the devices of the estimate are RAM."""
    speed: dict[str, Any] | None = None
    """What `planner/speed` says of it, as --json has it; None for a plan that nobody asked it of."""
    corrections: tuple[Correction, ...] = ()
    """Terms that stand where earlier runs measured them; the estimate holds the corrected figures."""
    cpu_activations: Literal["exact", "int8"] = "exact"
    """int8: beside weights of 4 and 8 bits they are rounded, on a CPU (--cpu-activations)."""
    host: tuple[HostProcess, ...] = ()
    """What of the service holds RAM beside the models; in a plan on the CPU it is part of what others hold."""
    next_command: str = ""
    """The command that serves it; empty where nobody asked for one, and for a plan that does not fit."""
    machine: str = ""
    """The cards on which `next_command` is to be called; empty: here."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Keys that its engine reads in the place of config.json's own, nested as there (--context, --hf-overrides)."""
    guess: str = ""
    """That the packing of the weights is a guess by the model's name, with the way to exact ones; empty: it is not."""
    may_fit: bool = False
    """Of a guess that does not fit with the largest weights that its name can mean: it does with the smallest, and this
    is their plan."""

    @property
    def is_usable(self) -> bool:
        """Whether answers grow as fast as people read, as far as is known."""
        return self.speed is None or self.speed["usable"] is not False

    def __repr__(self) -> str:
        fits = "fits" if self.fits else "may fit" if self.may_fit else f"{format_bytes(self.short_bytes)} missing"
        cards = ", ".join(dict.fromkeys(f"{self.devices.count(one)} × {one.name}" for one in self.devices))
        return f"<Plan {self.model.id}, {self.quant.scheme}, {self.engine} {self.engine_version}, {cards}: {fits}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: a bar for each device."""
        from qserve.planner.html import plan_html  # in notebooks alone

        return plan_html(self.to_json(), [f"{way.title} ({way.cost})" for way in self.suggestions])

    def to_json(self) -> dict[str, Any]:
        """The object that `qserve plan --json` prints: plain dicts, lists, numbers, strings."""
        plain: dict[str, Any] = _plain(asdict(self))
        if self.speed is None:
            del plain["speed"]
        if self.model.revision is None:
            del plain["model"]["revision"]
        for name in ("host", "next_command", "machine", "overrides", "guess", "may_fit"):
            if not plain[name]:
                del plain[name]
        return plain

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """The plan that `to_json` wrote. Unknown fields are left out; a missing one raises TypeError."""
        values = {item.name: data[item.name] for item in fields(cls) if item.name in data}
        return cls(
            **{
                **values,
                "model": ModelSummary(**data["model"]),
                "quant": QuantChoice(**data["quant"]),
                "workload": Workload(**data["workload"]),
                "placement": Placement(**data["placement"]),
                "devices": tuple(_device(device) for device in data["devices"]),
                "suggestions": tuple(Suggestion(**item) for item in data.get("suggestions", ())),
                "notes": tuple(data.get("notes", ())),
                "explanations": tuple(data.get("explanations", ())),
                "engine_args": tuple(data.get("engine_args", ())),
                "corrections": tuple(Correction(**item) for item in data.get("corrections", ())),
                "host": tuple(HostProcess(**item) for item in data.get("host", ())),
            }
        )


def _device(data: dict[str, Any]) -> DevicePlan:
    return DevicePlan(**{**data, "terms": tuple(Term(**term) for term in data.get("terms", ()))})


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
