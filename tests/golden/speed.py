"""The speed arithmetic against published figures: every row of speed.csv is simulated as its source describes it."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from qserve.core.hardware import Device, known_gpus
from qserve.core.model_spec import ModelSpec
from qserve.core.schemes import SCHEMES
from qserve.engines.transformers.plan.steps import TransformersSteps
from qserve.hub.bundled import bundled_config
from qserve.planner.speed.figures import Figures, figures_of
from qserve.planner.speed.load import Load
from qserve.planner.speed.simulate import simulate
from qserve.planner.speed.simulated import Limits
from qserve.planner.speed.steps.times import StepTimes
from qserve.planner.speed.terms.card import card_of
from qserve.planner.speed.terms.engine_costs import EngineCosts, engine_costs, era_of
from qserve.planner.speed.terms.formats import weight_format
from qserve.planner.speed.terms.network import RankNetwork, rank_network
from tests.golden.speed_flags import NO_FLAGS, Flags, flags_of, vllm_defaults
from tests.golden.speed_loads import is_inferencex, load_of

__all__ = ["ROWS", "Case", "Comparison", "cases", "compare", "scheme_of"]

ROWS = Path(__file__).parent / "speed.csv"

_CARDS = {
    "h100_sxm": "h100-sxm",
    "b200_sxm": "b200",
    "A100-80GB": "a100-80gb",
    "B200": "b200",
    "h200_sxm": "h200",
    "H20-96GB": "h20",
    "b300_sxm": "b300",
    "H200": "h200",
    "B300": "b300",
    "gb200": "gb200",
    "RTX3090": "rtx-3090",
    "A40": "a40",
    "RTX4090": "rtx-4090",
    "H20": "h20",
    "H100": "h100-sxm",
    "A100-40GB": "a100-40gb",
    "L40S": "l40s",
    "RTX5060Ti": "rtx-5060-ti",
    "RTX5070Ti": "rtx-5070-ti",
    "RTX5090": "rtx-5090",
}
_NAMED_AS = {"nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B", "Qwen/Qwen3-235B-A22B-FP8": "Qwen/Qwen3-235B-A22B"}
_ENGINES = {"vLLM": "vllm", "SGLang": "sglang", "TensorRT-LLM": "trtllm", "transformers": "transformers"}
# AutoRound writes the layout of GPTQ.
_QUANTS = {"": "bf16", "int8-w8a8": "w8a8", "autoround-int4": "gptq-int4"}
# Pages that name no release, by when they appeared: early 2025 (with DeepSeek-R1's distilled models); May 2025.
_RELEASES = {"www.databasemart.com": "0.7", "github.com": "0.8.5"}
# A card whose bandwidth stands in the table as its published runs reach it.
_FITTED_BANDWIDTH = ("h20",)


@dataclass(frozen=True)
class Case:
    """One measured run: the rows of one source that differ in the metric alone."""

    source: str
    model: str
    quant: str
    engine: str
    version: str
    gpu: str
    ranks: int
    load: Load
    is_saturated: bool
    rows: tuple[tuple[str, str, float], ...]
    """(id, metric, value) of each."""
    chunk: int = 0
    """Tokens of a step, 0 for the engine's own."""
    recv_interval: int = 1
    cache: str = "bf16"
    flags: Flags = NO_FLAGS

    @property
    def group(self) -> tuple[str, str, str]:
        """(card, engine, release): what folds leave out."""
        return self.gpu, self.engine, self.version

    @property
    def era(self) -> str:
        return self.engine if self.engine == "transformers" else era_of(self.engine, self.version)


class Held:
    """A measured figure beside the planned one."""

    measured: float
    planned: float

    @property
    def error(self) -> float:
        """(planned - measured) / measured."""
        return self.planned / self.measured - 1


@dataclass(frozen=True)
class Comparison(Held):
    """A published figure beside the planned one."""

    id: str
    case: Case
    metric: str
    measured: float
    planned: float

    @property
    def kind(self) -> str:
        """What the accuracy is stated for."""
        if self.metric in ("tpot", "itl"):
            return "tpot"
        if self.metric == "ttft":
            return "ttft at one stream" if self.case.load.streams == 1 else "ttft above"
        return "saturated" if self.case.is_saturated else "throughput"


def cases(path: Path = ROWS, every: bool = False) -> Iterator[Case]:
    """The judged rows, by run; `every`: also those that are left out and can be planned."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    keys = (
        "source",
        "model",
        "quant",
        "engine",
        "engine_version",
        "gpu",
        "n_gpu",
        "tp",
        "pp",
        "dp",
        "concurrency",
        "request_rate",
        "num_prompts",
        "notes",
    )
    with path.open() as file:
        for row in csv.DictReader(file):
            if every or not row["not_judged"]:
                lengths = (row["input_tokens"], row["output_tokens"])
                groups.setdefault((*(row[key] for key in keys), *lengths), []).append(row)
    for rows in groups.values():
        case = _case(rows)
        if case is not None:
            yield case


def _case(rows: list[dict[str, str]]) -> Case | None:
    row = rows[0]
    ranks = int(row["tp"] or row["n_gpu"] or 1) * int(row["pp"] or 1)
    note = re.search(r"TP=(\d)", row["notes"])
    load = load_of(row)
    if load is None or row["gpu"] not in _CARDS or _config(row["model"]) is None or scheme_of(row) not in SCHEMES:
        return None
    source = row["source"].replace("#NVIDIA", "#InferenceX") if is_inferencex(row) else row["source"]
    return Case(
        source,
        row["model"],
        scheme_of(row),
        _ENGINES[row["engine"]],
        row["engine_version"] or _RELEASES.get(row["source"].split("/")[2], ""),
        _CARDS[row["gpu"]],
        int(note[1]) if note else max(ranks, 1),
        load,
        _is_saturated(row),
        tuple((one["id"], one["metric"], _value(one)) for one in rows),
        **_recipe(row, load),
        flags=flags_of(row["notes"]),
    )


def _recipe(row: dict[str, str], load: Load) -> dict[str, Any]:
    """The server's flags where the source's scripts name them."""
    if not is_inferencex(row):
        return {}
    cache = "bf16" if row["quant"] == "bf16" else "fp8"
    if row["gpu"] == "h200_sxm":
        return {"chunk": 16384, "cache": cache}
    if row["gpu"] == "b300_sxm" and row["quant"] == "fp8" and row["engine_version"].startswith("0.5.10"):
        return {"chunk": 16384, "recv_interval": 10, "cache": cache}
    return {"chunk": 32768, "recv_interval": 30 if (load.streams or 0) >= 16 else 10, "cache": cache}


def scheme_of(row: dict[str, str]) -> str:
    """The scheme by qserve's name, or the source's word where qserve has none.

    fp8 of a 16-bit checkpoint has a scale for each tensor (ModelOpt), of Qwen's one for each block.
    """
    if row["quant"] == "fp8" and "gemm=fp8 moe=fp8;" in row["notes"] and "FP8" not in row["model"]:
        return "fp8_per_tensor"
    return _QUANTS.get(row["quant"], row["quant"])


def _is_saturated(row: dict[str, str]) -> bool:
    """All requests at once: a concurrency below their number would hold some of them back."""
    return row["request_rate"] == "inf" and float(row["num_prompts"] or 0) <= float(row["concurrency"] or "inf")


def _value(row: dict[str, str]) -> float:
    return float(row["value"]) * (1000 if row["unit"] == "s" else 1)


@cache
def spec_of(model: str) -> ModelSpec:
    config = _config(model)
    assert config is not None, model
    return ModelSpec.from_config(config, _NAMED_AS.get(model, model))


def _config(model: str) -> Mapping[str, Any] | None:
    return bundled_config(_NAMED_AS.get(model, model))


@cache
def _network(
    model: str, quant: str, formats: tuple[str, ...], is_hopper: bool, ranks: int, unseen: bool
) -> RankNetwork:
    weights = weight_format(quant, formats, is_hopper)
    # Marlin's factors and those of FP8 blocks were fitted to rows of A100, H20 and H100.
    plain = replace(weights, bandwidth_factor=1.0, peak_factor=1.0) if unseen else weights
    return rank_network(spec_of(model), plain, ranks)


def plan_case(case: Case, costs: EngineCosts | None = None, *, unseen: bool = False) -> Figures:
    """What the arithmetic says of one run.

    `unseen`: without what the kernels' tables were corrected by from rows of the case's own group.
    """
    card = card_of(device_of(case.gpu), case.gpu)
    if unseen and case.gpu in _FITTED_BANDWIDTH:
        card = replace(card, bandwidth=device_of(case.gpu).bandwidth_bytes_per_s or card.bandwidth)
    if case.engine == "transformers":
        steps = TransformersSteps.of(spec_of(case.model), case.quant, card)
        return figures_of(simulate(steps, case.load, Limits(1, 10**6, 10**9)), case.load)  # type: ignore[arg-type]
    costs = costs or engine_costs(case.engine, case.version)
    network = _network(case.model, case.quant, tuple(card.peaks), card.is_hopper, case.ranks, unseen)
    steps = StepTimes(card, network, costs, case.cache)
    run = simulate(steps, case.load, _limits(case, costs, steps))
    return figures_of(run, case.load)


def device_of(gpu: str) -> Device:
    """The card of a row."""
    return known_gpus()[gpu]


def _limits(case: Case, costs: EngineCosts, steps: StepTimes) -> Limits:
    """Cache by the rule of thumb of the accuracy rows: nine tenths of the cards less weights and 4 GB each."""
    spec, network = spec_of(case.model), steps.network
    size = network.gemms[0].weights.bytes_per_weight
    memory = device_of(case.gpu).total_bytes
    weights = network.linear_weights * size + 2 * network.lm_head.rows * network.hidden_size * 2
    per_token = (spec.num_full_layers + spec.num_sliding_layers) * network.kv_heads * spec.head_dim * 4
    tokens = int(max(0.9 * memory - weights - 4e9, 4e9) / per_token)
    flags, chunk, seqs = case.flags, costs.max_num_batched_tokens, 1024
    if case.engine == "vllm":
        chunk, seqs = (chunk, 256) if case.era == "vllm-v0" else vllm_defaults(device_of(case.gpu))
    return Limits(flags.seqs or seqs, case.chunk or flags.chunk or chunk, flags.kv_tokens or tokens, case.recv_interval)


def planned_value(case: Case, metric: str, figures: Figures) -> tuple[str, float] | None:
    """(family of the metric, planned value) of a published metric; None for one that is not planned."""
    load = case.load
    both = (load.input_tokens + load.output_tokens) / load.output_tokens
    stat = "p50" if metric.startswith("median") else "p99" if metric.startswith("p99") else "mean"
    for family, summary in (("ttft", figures.ttft_ms), ("tpot", figures.tpot_ms), ("e2e", figures.e2e_ms)):
        if metric in (family, f"median_{family}", f"mean_{family}", f"p99_{family}"):
            return family, getattr(summary, stat)
    values = {
        "mean_itl": ("tpot", figures.tpot_ms.mean),
        "output_throughput": ("throughput", figures.output_tokens_per_s),
        "prompt_plus_output_throughput": ("throughput", figures.output_tokens_per_s * both),
        "total_throughput": ("throughput", figures.output_tokens_per_s * both),
        "request_throughput": ("throughput", figures.requests_per_s),
    }
    return values.get(metric)


def compare(
    some: Iterable[Case], costs: dict[str, EngineCosts] | None = None, *, unseen: bool = False
) -> Iterator[Comparison]:
    """Every figure of `some` that is planned; `costs` by era stand in place of the table's; `unseen`: `plan_case`."""
    for case in some:
        figures = plan_case(case, (costs or {}).get(case.era), unseen=unseen)
        for row_id, metric, value in case.rows:
            planned = planned_value(case, metric, figures)
            if planned is not None and planned[1] > 0:
                yield Comparison(row_id, case, planned[0], value, planned[1])
