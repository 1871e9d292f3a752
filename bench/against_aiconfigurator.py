"""AIConfigurator (NVIDIA, Apache-2.0) side by side on the published rows that it supports, and a search of each.

    python3 -m venv ../aic && ../aic/bin/pip install aiconfigurator==0.12.0
    .venv/bin/python bench/against_aiconfigurator.py --python ../aic/bin/python --every 12
    .venv/bin/python bench/against_aiconfigurator.py --python ../aic/bin/python --rows none --search

Rows: closed loops in bf16 or fp8 on cards of which it has tables (H100, H200, B200, A100). "main" are the runs of
Qwen3-32B, 30B-A3B and 8B that state TPOT and TTFT; "throughput" are those that state a throughput: Qwen3-235B-A22B in
SGLang on B200, and Qwen2.5 in vLLM at one stream on A100, whose architecture it knows and whose config.json is handed
to it. Its tables hold other releases than the rows; each is given the newest of its engine. It runs in an environment
of its own, as one process for all rows, so that loading its tables is counted once and told apart. Prints the median
error of each, and processor seconds a run. --search times a whole search of either command line.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from qserve.hub.bundled import bundled_config
from tests.golden.speed import Case, cases, plan_case, planned_value

_SYSTEMS = {"h100-sxm": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm", "a100-80gb": "a100_sxm"}
_MAIN = ("Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-8B")
_NAMED_AS = {"Qwen/Qwen3-235B-A22B-Instruct-2507": "Qwen/Qwen3-235B-A22B"}
_THROUGHPUTS = ("output_throughput", "total_throughput", "request_throughput")
_LOAD = ("--model", "Qwen/Qwen3-32B", "--input", "1000", "--output", "300", "--ttft", "1s", "--tpot", "50ms")

# Runs under --python; rows as JSON lines in, {id, ttft, tpot, tokens_per_s, seconds} out.
_CHILD = r"""
import json, sys, time
from aiconfigurator_core.sdk import common, config
from aiconfigurator_core.sdk.backends.factory import get_backend
from aiconfigurator_core.sdk.models import get_model
from aiconfigurator_core.sdk.perf_database import get_database
VERSIONS = {"vllm": ["0.24.0", "0.14.0"], "sglang": ["0.5.14"], "trtllm": ["1.3.0rc20", "1.3.0rc15"]}
databases = {}
def database_of(system, engine):
    key = system, engine
    if key not in databases:
        found = None
        for version in VERSIONS[engine]:
            try:
                found = found or get_database(system, engine, version)
            except ValueError:  # a release that this card has no tables of
                continue
        databases[key] = found
    return databases[key]
for line in sys.stdin:
    row = json.loads(line)
    try:
        began = time.process_time()
        database = database_of(row["system"], row["engine"])
        loaded = time.process_time()
        quant = {"bf16": "bfloat16", "fp8": "fp8_block" if row["engine"] != "trtllm" else "fp8"}[row["quant"]]
        settings = config.ModelConfig(
            tp_size=row["ranks"], moe_tp_size=row["ranks"], moe_ep_size=1, gemm_quant_mode=common.GEMMQuantMode[quant],
            kvcache_quant_mode=common.KVCacheQuantMode["bfloat16"], fmha_quant_mode=common.FMHAQuantMode["bfloat16"],
        )
        model = get_model(row["model"], settings, row["engine"])
        runtime = config.RuntimeConfig(batch_size=row["streams"], isl=row["input"], osl=row["output"])
        summary = get_backend(row["engine"]).run_agg(model, database, runtime, ctx_tokens=max(row["input"], 8192))
        frame = summary.get_summary_df().iloc[0]
        print(json.dumps({"id": row["id"], "ttft": float(frame["ttft"]), "tpot": float(frame["tpot"]),
                          "tokens_per_s": float(frame["tokens/s"]), "loading": loaded - began,
                          "seconds": time.process_time() - loaded}), flush=True)
    except Exception as error:
        print(json.dumps({"id": row["id"], "error": repr(error)[:300]}), flush=True)
"""


def selected(which: str, every: int) -> list[Case]:
    """The runs of a kind; of the main ones every so many."""
    some = [one for one in cases() if one.gpu in _SYSTEMS and one.quant in ("bf16", "fp8") and one.load.streams]
    if which == "main":
        return [one for one in some if one.model in _MAIN and one.load.concurrency][::every]
    return [
        one
        for one in some
        if one.engine in ("vllm", "sglang", "trtllm")
        and one.model not in _MAIN
        and any(metric in _THROUGHPUTS for _, metric, _ in one.rows)
    ]


def rows_for(some: Sequence[Case], folder: Path) -> Iterator[str]:
    """The lines for the child; a model that its tables do not name is told by its config.json in `folder`."""
    for index, one in enumerate(some):
        model = _NAMED_AS.get(one.model, one.model)
        config = None if model in (*_MAIN, *_NAMED_AS.values()) else bundled_config(one.model)
        if config is not None:
            there = folder / one.model.replace("/", "--")
            there.mkdir(exist_ok=True)
            (there / "config.json").write_text(json.dumps(config))
            model = str(there)
        yield json.dumps(
            {
                "id": index,
                "system": _SYSTEMS[one.gpu],
                "engine": one.engine,
                "quant": one.quant,
                "ranks": one.ranks,
                "model": model,
                "streams": one.load.streams,
                "input": one.load.input_tokens,
                "output": one.load.output_tokens,
            }
        )


def compare(python: str, some: Sequence[Case]) -> None:
    """Prints the median errors of both, and what a run takes."""
    with tempfile.TemporaryDirectory() as folder:
        lines = "\n".join(rows_for(some, Path(folder)))
        done = subprocess.run([python, "-c", _CHILD], input=lines, capture_output=True, text=True, check=False)
    theirs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = [one for one in theirs if "error" not in one]
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    ours_s = 0.0
    for their in found:
        case = some[their["id"]]
        began = time.process_time()
        figures = plan_case(case)
        ours_s += time.process_time() - began
        for family, ours, other, measured in _beside(case, figures, their):
            errors[family, "qserve"].append(abs(ours / measured - 1))
            errors[family, "AIConfigurator"].append(abs(other / measured - 1))
    refused = [one["error"] for one in theirs if "error" in one]
    print(f"{len(found)} runs of {len(some)}; {len(refused)} that it refused", *refused[:1], done.stderr[-300:].strip())
    for (family, who), values in sorted(errors.items()):
        print(f"{family:12} {who:16} {len(values):4d} rows  median error {100 * _median(values):.1f} %")
    if found:
        each, loading = sum(one["seconds"] for one in found) / len(found), sum(one["loading"] for one in found)
        print(
            f"processor seconds a run: AIConfigurator {each:.4f} (and {loading:.1f} for its tables, once), "
            f"qserve {ours_s / len(found):.5f}: {each * len(found) / ours_s:.0f} times"
        )


def _beside(case: Case, figures: Any, their: dict[str, float]) -> Iterator[tuple[str, float, float, float]]:
    """(family, ours, theirs, measured) of each figure of a run; of several throughputs of one run the first."""
    stated = set()
    for _, metric, measured in sorted(case.rows, key=lambda row: row[1]):
        planned = planned_value(case, metric, figures)
        if planned is None or (planned[0] == "throughput" and "throughput" in stated):
            continue
        family = planned[0]
        stated.add(family)
        # Of a throughput in other units both are held in the row's: its ratio to tokens/s is of the load alone.
        scale = planned[1] / figures.output_tokens_per_s if family == "throughput" else 1.0
        other = {"ttft": their["ttft"], "tpot": their["tpot"], "throughput": their["tokens_per_s"] * scale}.get(family)
        if other:
            yield family, planned[1], other, measured


def search(python: str, turns: int) -> None:
    """A search of eight H100 for one load by both command lines, in turns."""
    theirs = [
        str(Path(python).parent / "aiconfigurator"),
        "cli",
        "default",
        "--model-path",
        "Qwen/Qwen3-32B",
        "--total-gpus",
        "8",
        "--system",
        "h100_sxm",
        "--backend",
        "vllm",
        "--serving-mode",
        "agg",
        "--isl",
        "1000",
        "--osl",
        "300",
        "--ttft",
        "1000",
        "--tpot",
        "50",
    ]
    ours = [
        sys.executable,
        "-m",
        "qserve",
        "plan",
        *_LOAD,
        "--gpu",
        "h100:8",
        "--concurrency",
        "64",
        "--no-learn",
        "--json",
    ]
    taken: dict[str, list[tuple[float, float]]] = {"AIConfigurator": [], "qserve": []}
    for _ in range(turns):
        for who, command in (("AIConfigurator", theirs), ("qserve", ours)):
            taken[who].append(_timed(command))
    for who, values in taken.items():
        wall, cpu = (_median([one[place] for one in values]) for place in (0, 1))
        print(f"a search, {who}: {wall:.2f} s by the clock, {cpu:.2f} s of processor time")


def _timed(command: Sequence[str]) -> tuple[float, float]:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command[0]} failed ({done.returncode}):\n{(done.stderr or done.stdout)[-1500:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="the interpreter that has aiconfigurator")
    parser.add_argument("--every", type=int, default=1, help="only every so many of the main rows")
    parser.add_argument("--rows", nargs="+", choices=["main", "throughput", "none"], default=["main", "throughput"])
    parser.add_argument("--search", action="store_true", help="time a whole search of both command lines")
    parser.add_argument("--turns", type=int, default=3, help="searches of each")
    arguments = parser.parse_args()
    for which in arguments.rows:
        if which != "none":
            print(f"\n{which} rows")
            compare(arguments.python, selected(which, arguments.every))
    if arguments.search:
        search(arguments.python, arguments.turns)


if __name__ == "__main__":
    main()
