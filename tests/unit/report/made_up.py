"""A run with something to say in every section, and hostile names where they are asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qserve.core.hardware import Hardware
from qserve.hub import resolve
from qserve.planner import make_plan, plan_request
from qserve.report import RunReport
from qserve.runs import (
    Histogram,
    MemorySample,
    Percentiles,
    RequestGroup,
    RequestSummary,
    SeriesPoint,
    StoredDocument,
    StoredEvent,
    StoredRun,
    StoredWorker,
    Traffic,
    WorkerTraffic,
)

BEGAN = 1_795_300_000.0
MIB = 1024**2
MACHINE = Hardware((), 64 * 1024**3, 60 * 1024**3, 8)
"""A machine of its own: what this one has, and which engines are installed here, changes no plan."""


def a_worker(name="chat", model="demo"):
    plan = make_plan(resolve("demo"), MACHINE, plan_request(engine="transformers")).to_json()
    return StoredWorker(name, (model,), plan, (plan,), {"importing": 3.0, "loading weights": 1.0}, 1)


def a_run(*workers, **changes):
    values = {
        "id": "20261121-224000-7",
        "started_unix_s": BEGAN,
        "last_seen_unix_s": BEGAN + 600,
        "ended_unix_s": BEGAN + 600,
        "exit_status": 0,
        "state": "ended",
        "command": ("qserve", "up", "--model", "demo", "--api-key", "***"),
        "versions": {"qserve": "0.1.0"},
        "hardware": {"devices": [], "cpu": "A CPU", "cpu_cores": 2, "ram_total_bytes": 8192 * MIB},
        "folder": Path("/state/runs/x"),
        "url": "http://127.0.0.1:8000",
        "num_requests": 30,
        "num_errors": 2,
        "num_lost": 0,
        "workers": workers,
    }
    return StoredRun(**{**values, **changes})


def measured(worker):
    """Twice the weights, half the KV tokens, everything else as planned."""
    device = worker.plan["devices"][0]
    terms = {
        "weights_bytes": 2 * device["weights_bytes"],
        "kv_cache_bytes": device["kv_cache_bytes"],
        "activations_bytes": device["activations_bytes"],
        "runtime_bytes": device["runtime_bytes"],
        "kv_cache_tokens": worker.plan["kv_cache_tokens"] // 2,
        "resident_bytes": 700 * MIB,
    }
    document = {**terms, "sources": {"weights_bytes": "sum of the tensors", "kv_cache_tokens": "the pool's size"}}
    return [
        MemorySample(BEGAN + 5, worker.name, "ready", terms, document),
        MemorySample(BEGAN + 65, worker.name, "serving", {"resident_bytes": 710 * MIB}),
        MemorySample(BEGAN + 125, worker.name, "serving", {"resident_bytes": 720 * MIB}),
        MemorySample(BEGAN + 600, worker.name, "end", terms, document),
    ]


def traffic_of(name, model, *, streams):
    latency = Percentiles(15, 21.0, 10.0, 20.0, 30.0, 40.0, 41.0)
    names = ("queued", "ttft", "tpot", "e2e") if streams else ("queued", "e2e")
    summary = RequestSummary(
        15, 1, 0, BEGAN, BEGAN + 300, 700, 300, {200: 14, 503: 1}, {"queue_full": 1}, dict.fromkeys(names, latency)
    )
    series = tuple(
        SeriesPoint(
            BEGAN + 60 * index,
            5,
            0,
            200 + index,
            100,
            20.0 if streams else None,
            5.0 if streams else None,
            30.0 + index,
            44.0,
        )
        for index in (0, 1, 4)
    )
    histograms = {each: Histogram(1.0, (0,) * 9 + (5,) * 31, 1) for each in names}
    return WorkerTraffic(name, 60, summary, series, histograms), RequestGroup(f"/v1/{name}", model, name, 15, 1)


def scores(value=0.5, metric="exact_match"):
    return {
        "about": {"versions": {"lm-eval": "0.4.13"}, "seed": 1234, "seconds": 12.5},
        "lm_eval": {
            "results": {"arithmetic": {f"{metric},none": value, f"{metric}_stderr,none": 0.03, "alias": "x"}},
            "n-samples": {"arithmetic": {"effective": 200}},
            "n-shot": {"arithmetic": 0},
        },
    }


def comparison():
    def candidate(quant, weights_mib, accuracy, diffs):
        return {
            "quant": quant,
            "about": {"model_id": "demo"},
            "memory": {"resident_bytes": 600 * MIB},
            "weights_bytes": weights_mib * MIB,
            "start_s": 12.0,
            "accuracy": accuracy,
            "against_first": diffs,
            "load": {"ttft_ms": 20.0, "tpot_ms": 5.0, "tokens_per_s": 300.0, "e2e_ms": 100.0},
        }

    diffs = [{"task": "arithmetic", "flips": [{}, {}], "p_value": 0.5}]
    candidates = [candidate("bf16", 4, 0.98, []), candidate("int8", 2, 0.97, diffs), candidate("nf4", 3, 0.9, diffs)]
    return {"title": "demo on offline", "advice": "int8 holds half", "candidates": candidates}


def bench():
    stage = {
        "name": "8 at once",
        "completed": 100,
        "failed": 1,
        "request_throughput": 12.0,
        "output_throughput": 400.0,
        "median_ttft_ms": 20.0,
        "p99_ttft_ms": 50.0,
        "median_tpot_ms": 5.0,
        "p99_tpot_ms": 9.0,
        "median_e2el_ms": 100.0,
        "p99_e2el_ms": 200.0,
        "request_goodput": None,
    }
    return {"load": {"endpoint": "chat"}, "stages": [stage], "saturation": {"sentence": "Saturated at 8."}, "notes": []}


WORK = {
    "texts": 100,
    "tokens": 2000,
    "texts_per_s": 50.0,
    "tokens_per_s": 1000.0,
    "padding_share": 0.02,
    "shared_share": 0.3,
    "texts_a_row": {"1": 10, "4": 20},
    "sources": {"latency_ms": "in the worker"},
    "latency_ms": [
        {"max_tokens": 64, "requests": 90, "p50": 10.0, "p90": 20.0, "p99": 30.0},
        {"max_tokens": "all", "requests": 90, "p50": 10.0, "p90": 20.0, "p99": 30.0},
    ],
}


LATENCY = {
    "ttft_ms": {
        "planned_mean": 20.0,
        "planned_p50": 19.0,
        "low": 15.0,
        "high": 28.0,
        "measured_mean": 25.0,
        "measured_p50": 23.5,
        "difference": 0.25,
    },
    "tpot_ms": {
        "planned_mean": 5.0,
        "planned_p50": 5.1,
        "low": 4.5,
        "high": 6.0,
        "measured_mean": 4.75,
        "measured_p50": 4.7,
        "difference": -0.05,
    },
    "num_requests": 14,
    "learned_from": None,
    "source": "the last streamed answers",
}


def a_report(model="demo", **changes):
    """Every section has something to say."""
    chat, reward = a_worker("chat", model), a_worker("reward", f"{model}-reward")
    (of_chat, chat_group), (of_reward, reward_group) = (
        traffic_of("chat", model, streams=True),
        traffic_of("reward", f"{model}-reward", streams=False),
    )
    values = {
        "run": a_run(chat, reward),
        "memory": tuple(sorted((*measured(chat), *measured(reward)), key=lambda one: one.unix_s)),
        "events": (
            StoredEvent(BEGAN + 1, "chat", "phase", {"name": "loading"}),
            StoredEvent(BEGAN + 200, "chat", "restart", {"reason": "killed by SIGKILL", "pause_s": 0.25}),
        ),
        "traffic": Traffic((chat_group, reward_group), (of_chat, of_reward)),
        "work": {"reward": WORK},
        "latency": {"chat": LATENCY},
        "evals": (StoredDocument(1, "eval", BEGAN + 300, "x", "offline", scores()),),
        "benches": (StoredDocument(2, "bench", BEGAN + 400, "x", "8 at once", bench()),),
        "comparisons": (StoredDocument(3, "comparison", BEGAN + 500, None, "bf16, int8, nf4", comparison()),),
        "made_unix_s": BEGAN + 1000,
    }
    return RunReport(**{**values, **changes})


LONG_SOURCE = (
    "highest resident memory (VmHWM) since loading, without the weights and the KV cache: buffers of a step, compiled "
    "kernels, free heap; and the resident memory of the processes that read prompts"
)


def training():
    """Sixty steps of a reward model whose batches are small: a saw."""
    curve = [
        {
            "unix_s": BEGAN + 4 * step,
            "step": step,
            "loss": 0.7 - 0.003 * step + (-1) ** step * 0.1,
            "learning_rate": 1e-4,
            "accuracy": (0.25, 1.0, 0.5, 0.75)[step % 4],
            "step_s": 4.0,
        }
        for step in range(1, 61)
    ]
    length = {"shortest": 10, "longest": 90, "count": 27, "accuracy": 0.74, "low": 0.55, "high": 0.87}
    bins = [{"low": 0.5, "high": 0.55, "count": 27, "confidence": 0.52, "accuracy": 0.6}]
    return {
        "method": "reward",
        "model": "demo",
        "output": "/state/training/reward-1",
        "state": "ended",
        "reason": "",
        "step": 60,
        "num_steps": 60,
        "job": {"device": "cuda"},
        "memory_source": "torch's peak",
        "planned": {"terms": {"weights (fp32)": 8 * MIB, "runtime": 400 * MIB}, "phases": {"backward": 500 * MIB}},
        "measured": {"weights_bytes": 8 * MIB, "backward_bytes": 480 * MIB},
        "curve": curve,
        "evaluations": [{"step": 60, "loss": 0.51, "accuracy": 0.75, "margin": 0.7}],
        "tokens_per_s": 1234.5,
        "step_s": 4.0,
        "flops_per_s": 2e12,
        "mfu": 0.4,
        "rollouts": [
            {
                "step": 60,
                "samples": [
                    {
                        "prompt": "What is 12+30? " * 20,
                        "completion": "42 " * 90,
                        "reward": 0.5,
                        "rewards": {"rule": 0.5, "model": 0.25},
                    }
                ],
            }
        ],
        "data": {"told": "573 rows to train on, 27 held out", "notes": []},
        "held_out": {"pairs": 27, "right": 20},
        "quality": {"by_length": [length], "calibration": {"bins": bins, "error": 0.16}},
        "check": {"largest_difference": 1.5e-6, "num_texts": 54, "spread": 0.8, "num_flipped": 0, "num_pairs": 27},
        "configuration": f"output_dir: /state/training/reward-1\ndataset_name: /state/{'long' * 40}\n",
    }


def close_comparison():
    """Five quantizations, three of which lie where one does."""
    one = comparison()
    first = one["candidates"][0]
    places = {"bf16": (40, 0.98), "fp8": (22, 0.98), "int8": (22, 0.98), "bnb-nf4": (21, 0.979), "gptq": (12, 0.9)}
    candidates = [
        {**first, "quant": name, "weights_bytes": mib * MIB, "accuracy": accuracy, "stderr": 0.03}
        for name, (mib, accuracy) in places.items()
    ]
    return {**one, "candidates": candidates}


def a_full_report(**changes):
    """As many blocks as a report can have, two results of each kind, long words and long sentences."""
    report = a_report()
    chat, *others = report.run.workers
    alternatives = [
        {
            "layout": f"awq, {n} × TP {n}",
            "cards": n,
            "max_num_seqs": 64,
            "ttft_ms": 90.0 * n,
            "tpot_ms": 12.0,
            "output_tokens_per_s": 800.0 * n,
            "kept_share": 1.0,
            "price_per_hour": 1.5 * n,
            "chosen": n == 2,
            "pareto": True,
            "tokens_per_s_per_user": 100.0 + 9 * n,
            "tokens_per_s_per_card": 900.0 - 40 * n,
        }
        for n in range(1, 9)
    ]
    speed = {"load": {"input": 1000, "rps": 2, "assumed": False}, "alternatives": alternatives, "notes": []}
    chat = replace(chat, plan={**chat.plan, "speed": speed, "notes": [LONG_SOURCE]})
    documents = [
        replace(one, document={**one.document, "sources": dict.fromkeys(one.terms, LONG_SOURCE)})
        for one in report.memory
    ]
    right = {
        "name": "a_subset_of_some_length",
        "num_right": 96,
        "num_asked": 100,
        "accuracy": 0.96,
        "low": 0.9,
        "high": 0.98,
        "mean_margin": 3.5,
    }
    preferences = {
        "kind": "reward preferences",
        "file": "pairs.jsonl",
        "subsets": [right],
        "overall": {**right, "name": "overall"},
        "attributes": [{**right, "name": "helpful"}],
    }
    stage = bench()["stages"][0]
    load = {**bench(), "stages": [{**stage, "name": f"{2**n} at once"} for n in range(5)]}
    about = {**scores()["about"], "model": "demo", "scheme": "bf16"}
    evals = [{**scores(), "about": about}, {**scores(0.25), "about": about}, preferences]
    values = {
        "run": a_run(chat, *others),
        "memory": tuple(documents),
        "events": (*report.events, StoredEvent(BEGAN + 300, "chat", "restart", {"reason": LONG_SOURCE})),
        "evals": tuple(StoredDocument(n, "eval", BEGAN + n, "x", "offline", one) for n, one in enumerate(evals)),
        "benches": tuple(StoredDocument(n, "bench", BEGAN + n, "x", "1 to 16 at once", load) for n in (10, 11)),
        "comparisons": (StoredDocument(20, "comparison", BEGAN, None, "five", close_comparison()),),
        "trainings": (StoredDocument(30, "train", BEGAN, "x", "reward demo", training()),),
    }
    return replace(report, **{**values, **changes})
