"""From a plan and a load to figures with bands: what `qserve plan` says of speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import lru_cache
from typing import Any

from qserve.core.hardware import Device, Hardware
from qserve.core.model_spec import ModelSpec
from qserve.core.schemes import SCHEMES
from qserve.core.shortlist import SHORTLIST_ROWS
from qserve.planner.engine import engine_named
from qserve.planner.plan import USABLE_TPOT_MS, Plan
from qserve.planner.speed.bands import EXACT, Band, Metric, band_of
from qserve.planner.speed.calibration import NOTHING_MEASURED, CorrectedSteps, Measured, ResidualKey, SpeedResidual
from qserve.planner.speed.figures import Figures, Summary, figures_of
from qserve.planner.speed.load import Load
from qserve.planner.speed.simulate import simulate, simulate_while
from qserve.planner.speed.simulated import Finished, Limits, Steps
from qserve.planner.speed.steps.explained import explained
from qserve.planner.speed.steps.times import StepTimes
from qserve.planner.speed.terms.card import CardSpeed, card_of
from qserve.planner.speed.terms.cpu import UNKNOWN_CPU, CpuRates, cpu_card, cpu_format
from qserve.planner.speed.terms.engine_costs import EngineCosts, engine_costs, launch_bound_engines
from qserve.planner.speed.terms.formats import weight_format
from qserve.planner.speed.terms.network import rank_network
from qserve.units import format_count

__all__ = [
    "ONE_STREAM",
    "Replica",
    "SpeedEstimate",
    "device_of",
    "estimate_of",
    "estimate_speed",
    "is_launch_bound",
    "key_of",
    "replica_of",
    "replicas_of",
    "ttft_metric",
]

ONE_STREAM = Load(1000, 300)
"""What is planned where no load is named."""
_FELT_SHARE = 0.1
"""Of the processors: what other programs took in a measured run is reported from here on."""


@dataclass(frozen=True)
class Replica:
    """One server of a plan: its steps and limits, and what the bands depend on."""

    steps: Steps
    limits: Limits
    card: CardSpeed
    engine: str
    learned: SpeedResidual | None = None

    def run(self, load: Load, replicas: int = 1) -> Figures:
        """The load on `replicas` of these."""
        return figures_of(simulate(self.steps, load.shared_by(replicas), self.limits), load, replicas)

    def run_while(self, load: Load, goes_on: Callable[[Sequence[Finished]], bool], replicas: int = 1) -> Figures | None:
        """The same; None where `goes_on` said of answers of one of them that the rest is not wanted."""
        run = simulate_while(self.steps, load.shared_by(replicas), self.limits, goes_on)
        return None if run is None else figures_of(run, load, replicas)

    def band(self, metric: Metric) -> Band:
        """Around a figure of the kind."""
        is_cpu = self.card.interconnect == "memory"
        rows = "cpu" if is_cpu else self.engine
        return band_of(metric, rows, bool(self.card.like), self.learned is not None)


@dataclass(frozen=True)
class SpeedEstimate:
    """Figures of one load on `replicas` servers, each a `replica`. `bands` are by kind of figure."""

    load: Load
    figures: Figures
    replicas: int
    replica: Replica
    latency: Band
    ttft: Band
    throughput: Band
    is_named: bool
    max_rps: float | None = None
    saturated: Band = EXACT

    @property
    def notes(self) -> tuple[str, ...]:
        return _notes(self.replica, self.figures, self.load)

    @property
    def explained(self) -> tuple[str, ...]:
        """What its steps take, in sentences."""
        replica = self.replica
        return explained(replica.steps, replica.limits.max_num_batched_tokens, self.figures, self.load)

    def to_json(self) -> dict[str, Any]:
        """The object under "speed" of `qserve plan --json`, without alternatives."""
        figures = self.figures
        return {
            "load": _load_json(self.load, self.is_named),
            "ttft_ms": _with_band(figures.ttft_ms, self.ttft),
            "tpot_ms": _with_band(figures.tpot_ms, self.latency),
            "e2e_ms": _with_band(figures.e2e_ms, self._whole),
            "output_tokens_per_s": _rate(figures.output_tokens_per_s, self.throughput),
            "requests_per_s": _rate(figures.requests_per_s, self.throughput),
            "max_rps": None if self.max_rps is None else _rate(self.max_rps, self.saturated),
            "usable": figures.tpot_ms.mean <= USABLE_TPOT_MS if figures.num_requests else None,
            "replicas": self.replicas,
            "prefill_share": round(figures.prefill_share, 4),
            "preemptions": figures.preemptions,
            "notes": list(self.notes),
            "explained": list(self.explained),
        }

    @property
    def _whole(self) -> Band:
        """Of a whole answer: its first token's band and the others', by their parts of it."""
        first = min(1.0, self.figures.ttft_ms.mean / (self.figures.e2e_ms.mean or 1.0))
        return Band(
            *(first * a + (1 - first) * b for a, b in zip(*map(astuple, (self.ttft, self.latency)), strict=True))
        )


def estimate_speed(
    plan: Plan,
    spec: ModelSpec,
    device: Device,
    load: Load | None,
    replicas: int = 1,
    measured: Measured = NOTHING_MEASURED,
) -> SpeedEstimate:
    """The plan's speed under `load`; without one, of one stream. `spec` is of the checkpoint that the plan loads."""
    replica, named = replica_of(plan, spec, device, measured), load is not None
    load = load or ONE_STREAM
    return estimate_of(replica, replica.run(load, replicas), load, replicas, is_named=named)


def estimate_of(replica: Replica, figures: Figures, load: Load, replicas: int, *, is_named: bool) -> SpeedEstimate:
    """The figures with their bands."""
    is_saturated = load.burst is not None or figures.peak_running >= replica.limits.max_num_seqs > 1
    saturated = replica.band("saturated")
    # An open load that is kept up with has the rate of its arrivals: a band is of what the machine decides.
    keeps_up = load.rps is not None and figures.requests_per_s > 0.9 * load.rps
    rate = Band(0.97, 1.03) if keeps_up else saturated if is_saturated else replica.band("throughput")
    return SpeedEstimate(
        load=load,
        figures=figures,
        replicas=replicas,
        replica=replica,
        latency=replica.band("tpot"),
        ttft=replica.band(ttft_metric(load)),
        throughput=rate,
        is_named=is_named,
        saturated=saturated,
    )


def ttft_metric(load: Load) -> Metric:
    """The kind of figure that its first tokens are: those of a single stream wait for nobody."""
    return "ttft_one" if load.streams == 1 else "ttft"


def replica_of(plan: Plan, spec: ModelSpec, device: Device, measured: Measured = NOTHING_MEASURED) -> Replica:
    """The steps and limits of one server of the plan, corrected by what was `measured` on this machine."""
    found = _uncorrected(plan, spec, device, measured)
    learned = measured.residual_for(key_of(plan))
    if learned is None:
        return found
    return replace(found, steps=CorrectedSteps(found.steps, learned.factors), learned=learned)


def device_of(plan: Plan, hardware: Hardware) -> Device | None:
    """What of this machine the plan computes on; None where that is not there."""
    if plan.on_cpu:
        return hardware.cpu_device
    name = plan.devices[0].name if plan.devices else ""
    return next((device for device in hardware.devices if device.name == name), None)


def replicas_of(plan: Plan) -> int:
    """Servers side by side that a plan for a load starts; 1 of any other."""
    return int((plan.speed or {}).get("replicas", 1))


def is_launch_bound(plan: Plan) -> bool:
    """Whether its steps on a card take the time of their launches; such engines share no layer over cards."""
    return plan.engine in launch_bound_engines()


def key_of(plan: Plan) -> ResidualKey:
    """What a measurement of the plan's speed holds for."""
    placement = plan.placement
    ranks = placement.num_ranks
    checkpoint, device = plan.quant.checkpoint, plan.devices[0].name if plan.devices else ""
    return ResidualKey(plan.engine, plan.engine_version, device, checkpoint, plan.quant.scheme, ranks)


def _uncorrected(plan: Plan, spec: ModelSpec, device: Device, measured: Measured) -> Replica:
    card = card_of(device)
    limits = Limits(
        plan.workload.max_num_seqs,
        plan.workload.max_num_batched_tokens,
        max(plan.kv_cache_tokens, plan.workload.max_model_len, 1),
    )
    if plan.on_cpu:
        return _on_cpu(plan, spec, device, limits, measured.cpu or UNKNOWN_CPU)
    steps = engine_named(plan.engine).planner.card_steps(plan, spec, device) or _tabled_steps(plan, spec, device)
    return Replica(steps, limits, card, plan.engine)


def _tabled_steps(plan: Plan, spec: ModelSpec, device: Device) -> StepTimes:
    ranks, stages = plan.placement.tensor_parallel_size, plan.placement.pipeline_parallel_size
    cache = "fp8" if plan.kv_cache_dtype.startswith(("fp8", "nvfp4")) else "bf16"
    costs = engine_costs(plan.engine, plan.engine_version)
    replayed = engine_named(plan.engine).planner.replayed_tokens(plan, device)
    if costs.graph_tokens and replayed is not None:
        costs = replace(costs, graph_tokens=replayed)
    return _steps_on_cards(spec, device, costs, plan.quant.scheme, cache, ranks, stages)


@lru_cache(maxsize=64)
def _steps_on_cards(
    spec: ModelSpec, device: Device, costs: EngineCosts, scheme: str, cache: str, ranks: int, stages: int
) -> StepTimes:
    """The same for every number of replicas and every limit that `costs` do not depend on: what a step takes is counted
    once."""
    card = card_of(device)
    stored = spec.quantization.schemes if spec.quantization else ()
    formats = {one: weight_format(one, device.formats, card.is_hopper) for one in (scheme, *stored)}
    network = rank_network(spec, formats[scheme], ranks, formats)
    return StepTimes(card, network, costs, cache, stages)


def _on_cpu(plan: Plan, spec: ModelSpec, device: Device, limits: Limits, rates: CpuRates) -> Replica:
    # In 32 bit products are called one by one, too.
    calls = is_launch_bound(plan) and (not rates.is_compiled or plan.dtype == "float32")
    costs = engine_costs(f"{plan.engine}-cpu{'-calls' if calls else ''}", plan.engine_version)
    card = cpu_card(device, rates, costs)
    scheme = "fp32" if plan.dtype == "float32" and SCHEMES[plan.quant.scheme].bits == 16 else plan.quant.scheme
    network = rank_network(spec, cpu_format(scheme, rates, costs, is_exact=plan.cpu_activations == "exact"))
    rows = SHORTLIST_ROWS if plan.placement.head_copy_bytes else 0
    return Replica(StepTimes(card, network, costs, shortlist_rows=rows), limits, card, plan.engine)


def _notes(replica: Replica, figures: Figures, load: Load) -> tuple[str, ...]:
    notes = []
    if replica.learned is not None:
        one = replica.learned
        notes.append(
            f"Speed corrected by {one.num_requests} requests of {one.run}: {one.factors}; --no-learn leaves it out"
        )
        if one.others >= _FELT_SHARE:
            notes.append(f"Other programs took {100 * one.others:.0f} % of the processors in that run")
    elif replica.card.interconnect == "memory" and replica.card.like:
        notes.append("Speed is assumed; qserve doctor --measure measures this CPU in seconds")
    elif replica.card.like:
        notes.append("Speed is estimated; this card was not measured")
    if figures.preemptions:
        notes.append(
            f"The KV cache is too small for this load: {figures.preemptions} of {figures.num_requests} requests are "
            "preempted"
        )
    if not figures.num_requests:
        notes.append(
            f"The KV cache of {format_count(replica.limits.kv_cache_tokens)} tokens is too small for a request of "
            f"{format_count(load.input_tokens)} + {format_count(load.output_tokens)} tokens"
        )
    return tuple(notes)


def _with_band(summary: Summary, band: Band) -> dict[str, float]:
    low, high = band.around(summary.mean)
    return {name: round(value, 3) for name, value in {**asdict(summary), "low": low, "high": high}.items()}


def _rate(value: float, band: Band) -> dict[str, float]:
    low, high = band.around(value)
    return {"value": round(value, 4), "low": round(low, 4), "high": round(high, 4)}


def _load_json(load: Load, is_named: bool) -> dict[str, Any]:
    named = {name: getattr(load, name) for name in ("concurrency", "burst", "rps", "users") if getattr(load, name)}
    if load.trace:
        named["trace"] = len(load.trace)
    return {
        "input": load.input_tokens,
        "output": load.output_tokens,
        **(named or {"concurrency": 1}),
        "requests": load.total_prompts,
        "assumed": not is_named,
    }
