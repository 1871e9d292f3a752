"""AIConfigurator (NVIDIA, Apache-2.0) side by side on the published rows that it supports.

    python3 -m venv ../aic && ../aic/bin/pip install aiconfigurator-core==0.12.0
    .venv/bin/python bench/against_aiconfigurator.py --python ../aic/bin/python

Rows: Qwen3 of its own models on H100, H200, B200 in closed loops, in bf16 or fp8. Its tables hold other releases than
the rows; each is given the newest of its engine. It runs in an environment of its own, as one process for all rows, so
that loading its tables is counted once. Prints the median error of each, and seconds per row.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

_SYSTEMS = {"h100-sxm": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm"}
_MODELS = ("Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-8B")

# Runs under --python; rows as JSON lines in, {id, ttft, tpot, seconds} out.
_CHILD = r"""
import json, sys, time
from aiconfigurator_core.sdk import common, config
from aiconfigurator_core.sdk.backends.factory import get_backend
from aiconfigurator_core.sdk.models import get_model
from aiconfigurator_core.sdk.perf_database import get_database
VERSIONS = {"vllm": ["0.24.0"], "sglang": ["0.5.14"], "trtllm": ["1.3.0rc20", "1.3.0rc15"]}
databases = {}
def database_of(system, engine):
    key = system, engine
    if key not in databases:
        for version in VERSIONS[engine]:
            found = get_database(system, engine, version)
            if found is not None:
                break
        databases[key] = found
    return databases[key]
for line in sys.stdin:
    row = json.loads(line)
    start = time.perf_counter()
    try:
        database = database_of(row["system"], row["engine"])
        quant = {"bf16": "bfloat16", "fp8": "fp8_block" if row["engine"] != "trtllm" else "fp8"}[row["quant"]]
        settings = config.ModelConfig(
            tp_size=row["ranks"], gemm_quant_mode=common.GEMMQuantMode[quant],
            kvcache_quant_mode=common.KVCacheQuantMode["bfloat16"], fmha_quant_mode=common.FMHAQuantMode["bfloat16"],
        )
        model = get_model(row["model"], settings, row["engine"])
        runtime = config.RuntimeConfig(batch_size=row["streams"], isl=row["input"], osl=row["output"])
        summary = get_backend(row["engine"]).run_agg(model, database, runtime, ctx_tokens=max(row["input"], 8192))
        frame = summary.get_summary_df().iloc[0]
        print(json.dumps({"id": row["id"], "ttft": float(frame["ttft"]), "tpot": float(frame["tpot"]),
                          "seconds": time.perf_counter() - start}), flush=True)
    except Exception as error:
        print(json.dumps({"id": row["id"], "error": repr(error)[:200]}), flush=True)
"""


def main() -> None:
    from tests.golden.speed import cases, plan_case, planned_value

    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True, help="the interpreter that has aiconfigurator-core")
    parser.add_argument("--every", type=int, default=1, help="only every so many rows")
    arguments = parser.parse_args()
    some = [
        one for one in cases()
        if one.gpu in _SYSTEMS and one.model in _MODELS and one.quant in ("bf16", "fp8") and one.load.concurrency
    ][:: arguments.every]  # fmt: skip
    lines = [
        json.dumps({"id": index, "system": _SYSTEMS[one.gpu], "engine": one.engine, "quant": one.quant,
                    "ranks": one.ranks, "model": one.model, "streams": one.load.concurrency,
                    "input": one.load.input_tokens, "output": one.load.output_tokens})
        for index, one in enumerate(some)
    ]  # fmt: skip
    began = time.perf_counter()
    done = subprocess.run(
        [arguments.python, "-c", _CHILD], input="\n".join(lines), capture_output=True, text=True, check=False
    )
    theirs_s = time.perf_counter() - began
    theirs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    failed = [one for one in theirs if "error" in one]
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    ours_s = 0.0
    for found in theirs:
        if "error" in found:
            continue
        case = some[found["id"]]
        began = time.perf_counter()
        figures = plan_case(case)
        ours_s += time.perf_counter() - began
        streams, output = case.load.concurrency or 1, case.load.output_tokens
        for _, metric, measured in case.rows:
            planned = planned_value(case, metric, figures)
            rate = 1000 * streams * output / (found["ttft"] + found["tpot"] * (output - 1))
            their = {"ttft": found["ttft"], "tpot": found["tpot"], "throughput": rate}.get(
                planned[0] if planned else ""
            )
            if planned and their and metric in ("ttft", "tpot", "output_throughput"):
                errors[planned[0], "qserve"].append(abs(planned[1] / measured - 1))
                errors[planned[0], "AIConfigurator"].append(abs(their / measured - 1))
    print(
        f"{len(theirs) - len(failed)} runs of {len(some)}; {len(failed)} that it refused",
        *failed[:1],
        done.stderr[-300:],
    )
    for (metric, who), values in sorted(errors.items()):
        print(
            f"{metric:12} {who:16} {len(values):4d} rows  median error {100 * sorted(values)[len(values) // 2]:.1f} %"
        )
    count = max(1, len(theirs) - len(failed))
    print(f"seconds a run: AIConfigurator {theirs_s / count:.3f} (tables loaded once), qserve {ours_s / count:.4f}")


if __name__ == "__main__":
    main()
