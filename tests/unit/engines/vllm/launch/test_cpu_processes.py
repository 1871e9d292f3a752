"""When engine and worker of vLLM share a process on a CPU, and when they are left as vLLM has them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qserve.engines.vllm.launch import cpu_processes
from qserve.engines.vllm.launch.command import command
from qserve.engines.vllm.launch.cpu_processes import joined_processes
from qserve.planner import make_plan, plan_request
from tests.unit.engines.vllm.builders import checkpoint, hardware, parser_for, plan_of, spec_of

JOINED = "VLLM_ENABLE_V1_MULTIPROCESSING"


@pytest.fixture(autouse=True)
def _one_node_of_three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_processes, "count_numa_nodes", lambda: 1)
    monkeypatch.setattr(cpu_processes, "count_physical_cores", lambda: 3)


def test_one_worker_on_a_cpu_shares_the_engines_process() -> None:
    env = command(spec_of(plan_of(quant="bf16")), parser_for("0.32.0"), "", {"PATH": "/bin"}).env
    assert (env[JOINED], env["OMP_NUM_THREADS"]) == ("0", "2")


def test_a_card_is_left_as_it_is() -> None:
    assert joined_processes(plan_of("Qwen/Qwen3-8B", "rtx-4090"), (), {}) == {}


def test_a_release_that_nobody_tried_it_with_is_left_as_it_is() -> None:
    assert joined_processes(plan_of(quant="bf16", engine_version="0.31.0"), (), {}) == {}


def test_several_memory_nodes_keep_the_worker_whose_threads_are_bound_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_processes, "count_numa_nodes", lambda: 2)
    assert joined_processes(plan_of(quant="bf16"), (), {}) == {}


@pytest.mark.parametrize("name", [JOINED, "VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_NUM_OF_RESERVED_CPU"])
def test_whoever_binds_threads_himself_is_not_overruled(name: str) -> None:
    env = command(spec_of(plan_of(quant="bf16")), parser_for("0.32.0"), "", {"PATH": "/bin", name: "1"}).env
    assert env[name] == "1" and "OMP_NUM_THREADS" not in env


def test_the_users_number_of_threads_stands() -> None:
    assert joined_processes(plan_of(quant="bf16"), (), {"OMP_NUM_THREADS": "1"})["OMP_NUM_THREADS"] == "1"


def test_several_engines_keep_their_workers() -> None:
    assert joined_processes(plan_of(quant="bf16"), ("--data-parallel-size", "2"), {}) == {}


def test_the_plan_counts_as_many_processes_as_will_run() -> None:
    def runtime(numa_nodes: int, **fixed: object) -> tuple[int, str]:
        machine = replace(hardware(), numa_nodes=numa_nodes)
        plan = make_plan(checkpoint("demo"), machine, plan_request(engine="vllm", quant="bf16", **fixed))
        (term,) = [term for term in plan.devices[0].terms if term.name == "Python"]
        return term.num_bytes, term.formula

    joined, apart = runtime(1), runtime(2)
    assert joined[0] < apart[0] and "with its worker" in joined[1]
    assert runtime(1, engine_version="0.31.0") == apart
