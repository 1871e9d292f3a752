"""GET /v1/qserve/memory of a vLLM worker: the engine's figures and the system's, each with its source."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from qserve.engines.vllm.launch.log import LogFigures, figures_of
from qserve.engines.vllm.launch.measured import cache_config, measured_memory
from qserve.engines.vllm.launch.processes import ProcessFigures, process_figures
from qserve.units import GIB, MIB

HERE = Path(__file__).parent
METRICS = (HERE / "cpu_metrics.txt").read_text()
CPU_LOG = figures_of((HERE / "cpu_start.log").read_text().splitlines())
PROCESSES = ProcessFigures(4, 1900 * MIB, 1700 * MIB)
CARD = LogFigures("0.32.0", weights_bytes=15 * GIB, kv_cache_bytes=4 * GIB, cuda_graphs_bytes=GIB, graphs_seconds=4)


def test_a_worker_on_the_cpu():
    memory = measured_memory(CPU_LOG, METRICS, PROCESSES)
    assert memory["kv_cache_bytes"] == 70_000_000
    assert (memory["kv_cache_tokens"], memory["max_concurrency"]) == (34176, 33.375)
    assert (memory["resident_bytes"], memory["unique_bytes"]) == (1900 * MIB, 1700 * MIB)
    assert memory["weights_bytes"] is None
    assert memory["sources"]["weights_bytes"] == "vLLM's CPU build does not say"
    assert memory["engine_version"] == "0.32.0"
    assert memory["seconds"]["starting vLLM"] == 11
    assert memory["seconds"]["loading weights, as counted"] == 0.07


def test_every_figure_has_its_source():
    for memory in (measured_memory(CPU_LOG, METRICS, PROCESSES), measured_memory(CARD, "", PROCESSES)):
        figures = {name for name in memory if name not in ("sources", "seconds", "engine_version")}
        assert figures == set(memory["sources"])
        assert all(memory["sources"].values())


def test_a_worker_on_cards_counts_all_ranks():
    processes = replace(PROCESSES, device_bytes=(("NVIDIA L40S", 21 * GIB), ("NVIDIA L40S", 22 * GIB)))
    memory = measured_memory(CARD, "", processes, num_devices=2)
    assert memory["weights_bytes"] == 30 * GIB
    assert memory["kv_cache_bytes"] == 8 * GIB
    assert memory["cuda_graphs_bytes"] == 2 * GIB
    assert memory["device_bytes"] == [
        {"name": "NVIDIA L40S", "bytes": 21 * GIB},
        {"name": "NVIDIA L40S", "bytes": 22 * GIB},
    ]
    assert memory["sources"]["weights_bytes"] == "vLLM's log, × 2 ranks"
    assert "--kv-cache-memory-bytes" in memory["sources"]["activations_bytes"]
    assert memory["seconds"] == {"capturing CUDA graphs, as counted": 4}


def test_what_the_metrics_do_not_say_comes_from_the_log():
    silent = METRICS.replace('"70000000"', '"None"').replace('"34176"', '"None"').replace('"33.375"', '"None"')
    memory = measured_memory(CPU_LOG, silent, PROCESSES)
    assert (memory["kv_cache_tokens"], memory["max_concurrency"]) == (34176, 33.38)
    assert memory["sources"]["kv_cache_tokens"] == "vLLM's log"
    assert memory["kv_cache_bytes"] is None
    assert cache_config("") == {}


def test_a_process_and_its_children_are_summed():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'], stdin=sys.stdin)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as parent:
        try:
            while (figures := process_figures(parent.pid)).num_processes < 2:
                pass
            assert 0 < figures.unique_bytes <= figures.resident_bytes < 200 * MIB
        finally:
            parent.stdin.close()


def test_a_process_that_is_gone_holds_nothing():
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    assert process_figures(gone.pid) == ProcessFigures(0, 0, 0)
    assert process_figures(os.getpid()).num_processes >= 1
