"""docs/results/gpu.md and gpu-constants.toml from the JSON files of bench/gpu.py: so a run on a card ends in a commit.

Several files of one card are one run: what a machine gives in ten minutes comes in commands, each with a file.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu_steps.order import GROUPS
from bench.gpu_steps.report import table
from bench.gpu_steps.rows import Result, rows_in

__all__ = ["Constant", "constants_of", "merged", "write_page"]

_BEGIN, _END = "<!-- results: written by bench/gpu.py --page -->", "<!-- end of results -->"


@dataclass(frozen=True)
class Constant:
    """A figure that the planner may take. `planner` says where it stands there today."""

    name: str
    value: float
    unit: str
    planner: str


def write_page(files: Sequence[Path], folder: Path) -> tuple[Path, Path]:
    """Write the results of `files` into the page of `folder`, and the constants beside it; returns both paths."""
    results = merged([json.loads(file.read_text()) for file in files])
    page, constants = folder / "gpu.md", folder / "gpu-constants.toml"
    text = page.read_text()
    before, rest = text.split(_BEGIN)
    tables = "\n".join(table(one).replace("\n## ", "\n### ").replace("# ", "## ", 1) for one in results)
    page.write_text(f"{before}{_BEGIN}\n\n{tables}\n{_END}{rest.split(_END)[1]}")
    constants.write_text("\n".join(_toml(one) for one in results))
    return page, constants


def merged(results: Iterable[Result]) -> list[Result]:
    """One of each card and day; a row that was measured takes the place of one that was not."""
    found: dict[tuple[str, str], Result] = {}
    for one in results:
        into = found.setdefault((one["card"], one["date"]), {**one, "seconds": 0.0, **{group: [] for group in GROUPS}})
        into["seconds"] += one["seconds"]
        into["versions"] |= one["versions"]
        for group in GROUPS:
            rows = {_name(row): row for row in into[group]}
            for row in one.get(group, ()):
                if _name(row) not in rows or "skipped" not in row:
                    rows[_name(row)] = row
            into[group] = list(rows.values())
    return list(found.values())


def _name(row: dict[str, Any]) -> str:
    return "/".join(str(row.get(key, "")) for key in ("what", "kernel", "model", "reward", "scheme", "engine"))


def constants_of(result: Result) -> Iterator[Constant]:
    """Those that the rows of `result` say something of."""
    limits = (result.get("limits") or {}).get("measured")
    if limits:
        yield Constant("read_bytes_per_s", limits["read_bytes_per_s"], "bytes/s", "configs/gpus.toml, bandwidth")
        yield Constant("gemm_flop_per_s", limits["gemm_flop_per_s"], "FLOP/s", "configs/gpus.toml, peak in bf16")
    rows = list(rows_in(result))
    yield from _of_steps(rows, limits)
    loads = [row for row in rows if "load_s" in row and "measured" in row]
    outside = [row["measured"]["runtime_bytes"] for row in loads if row["measured"]["runtime_bytes"]]
    if outside:
        planner = "engines/transformers, runtime"
        yield Constant("runtime_bytes", statistics.median(outside), "bytes", planner)
    for row in rows:
        if row.get("moved_bytes_per_s"):
            yield Constant(
                "offload_bytes_per_s",
                row["moved_bytes_per_s"],
                "bytes/s",
                "engines/transformers/plan/offloaded_weights.py",
            )
        for worker in (row.get("workers") or {}).values() if row.get("engine") == "vllm" else ():
            for term in ("activations_bytes", "cuda_graphs_bytes"):
                if worker["measured"].get(term):
                    name = f"vllm_{term}, {str(row['model']).removeprefix('Qwen/')}"
                    yield Constant(name, worker["measured"][term], "bytes", "engines/vllm")


def _of_steps(rows: Iterable[dict[str, Any]], limits: dict[str, Any] | None) -> Iterator[Constant]:
    """Of decoding at one stream in 16 bit: what a step takes beside the bytes that it reads."""
    for row in rows:
        if "bytes_per_step" not in row or row["scheme"] != "16 bit" or not str(row["what"]).startswith("1 stream"):
            continue
        taken_us, layers = 1000 * row["measured"]["ms_per_step"], row["layers"]
        if "library" in row["what"]:
            planner = "configs/speed.toml, transformers.hosts, bf16"
            yield Constant("library_layer_us", taken_us / layers, "µs a layer", planner)
        elif "captures off" in row["what"]:
            launches = row["layer_launches"] * layers
            yield Constant("launch_us", taken_us / launches, "µs a launch", "configs/speed.toml, layer_us / launches")
        elif limits:
            reading_us = row["bytes_per_step"] / limits["read_bytes_per_s"] * 1e6
            planner = "engines/transformers/plan/steps.py: none of a captured step"
            yield Constant("beside_reading_us", taken_us - reading_us, "µs a step", planner)
            captured = row["path"]["num_captured"]
            if captured and row["graphs_bytes"]:
                planner = "engines/transformers/plan/constants.py, GRAPH_BYTES_PER_LAYER"
                yield Constant("graph_bytes_per_layer", row["graphs_bytes"] / captured / layers, "bytes", planner)


def _toml(result: Result) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in result["versions"].items())
    lines = [
        f"# Measured by bench/gpu.py on {result['card']}, {result['date']}; {versions}.",
        "# `planner` says where a constant of this kind stands in the planner, which takes it over by hand.",
    ]
    for one in constants_of(result):
        lines += [
            "[[constant]]",
            f"name = {json.dumps(one.name)}",
            f"value = {one.value:.6g}",
            f"unit = {json.dumps(one.unit, ensure_ascii=False)}",
            f"planner = {json.dumps(one.planner)}",
            f"source = {json.dumps(result['card'] + ', ' + result['date'])}",
            "",
        ]
    return "\n".join(lines) + "\n"
