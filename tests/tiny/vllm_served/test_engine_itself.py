"""The demo model on real vLLM, asked behind the gateway's back: what came of the plan is what was planned."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from qserve.engines.vllm.launch.log import figures_of, phase_of
from qserve.engines.vllm.launch.measured import measured_memory
from qserve.engines.vllm.launch.parser import installed_parser
from qserve.engines.vllm.launch.processes import process_figures
from qserve.planner import Plan
from qserve.units import MIB
from tests.processes import environment, words
from tests.tiny.serving.served import Service
from tests.tiny.serving.vllm_processes import ask, command, the
from tests.unit.engines.vllm.builders import parser_for


@dataclass(frozen=True)
class Engine:
    """vLLM's own server below the service."""

    plan: Plan
    api_server: psutil.Process
    socket: Path
    key: str
    log: list[str]

    def ask(self, path: str, body: dict[str, Any] | None = None, key: str | None = None) -> tuple[int, bytes]:
        """Status and body of the answer."""
        return ask(self.socket, key or self.key, path, body)


@pytest.fixture(scope="module")
def running(service: Service, http: httpx.Client) -> Engine:
    (entry,) = http.get("/v1/qserve/memory").json()["data"]
    api_server = the(service, "api")
    flags = words(api_server)
    place = Path(flags[flags.index("--uds") + 1])
    key = environment(api_server)["VLLM_API_KEY"]
    return Engine(Plan.from_json(entry["planned"]), api_server, place, key, service.log.splitlines())


def test_the_flags_are_those_that_unit_tests_take_for_this_release() -> None:
    parser = installed_parser()
    if parser.version != "0.32.0":
        pytest.skip("the file is held to 0.32.0 here")
    assert parser == parser_for("0.32.0")


def test_the_cache_is_the_planned_one_to_the_token(running: Engine) -> None:
    _, metrics = running.ask("/metrics")
    figures = figures_of(running.log)
    memory = measured_memory(figures, metrics.decode(), process_figures(running.api_server.pid))
    assert figures.kv_cache_tokens == memory["kv_cache_tokens"] == running.plan.kv_cache_tokens
    assert memory["kv_cache_bytes"] == running.plan.placement.kv_cache_memory_bytes
    assert memory["max_concurrency"] == pytest.approx(running.plan.max_concurrency, rel=0.01)


def test_memory_is_counted_over_all_its_processes(running: Engine) -> None:
    figures = process_figures(running.api_server.pid)
    assert figures.num_processes >= 2  # API server; the engine, which has its worker in it on a CPU
    assert 500 * MIB < figures.unique_bytes <= figures.resident_bytes
    assert figures.resident_bytes > 1.5 * running.api_server.memory_full_info().pss


def test_engine_and_worker_are_one_process_as_the_plan_counts(service: Service, running: Engine) -> None:
    commands = [command(child) for child in running.api_server.children(recursive=True)]
    assert any("VLLM::EngineCor" in one for one in commands), commands
    assert not any("VLLM::Worker" in one for one in commands), commands
    (term,) = [term for term in running.plan.devices[0].terms if term.name == "Python"]
    assert "with its worker" in term.formula


def test_the_start_is_told_phase_by_phase_and_in_seconds(running: Engine) -> None:
    phases = [phase for line in running.log if (phase := phase_of(line))]
    assert phases == [
        "starting the engine's processes",
        "loading weights",
        "making the KV cache",
        "starting the server",
        "ready",
    ]
    figures = figures_of(running.log)
    assert figures.version == "0.32.0"
    assert figures.weights_seconds is not None
    assert sum(figures.phase_seconds.values()) > 0, "its lines tell whole seconds, of which one phase may take none"


def test_its_limits_are_the_plans(running: Engine) -> None:
    status, body = running.ask("/v1/models")
    cards = json.loads(body)["data"]
    assert status == 200
    assert [card["id"] for card in cards] == ["demo"]
    assert {card["max_model_len"] for card in cards} == {running.plan.workload.max_model_len}


def test_the_key_guards_it_and_no_command_line_shows_it(service: Service, running: Engine) -> None:
    assert running.ask("/v1/models", key="another")[0] == 401
    lines = [command(one) for one in psutil.Process(service.process.pid).children(recursive=True)]
    assert len(lines) >= 3  # the guard, the API server, the engine
    assert not [line for line in lines if running.key in line]
    assert running.key not in service.log


def test_what_lm_eval_asks_needs_no_further_flag(running: Engine) -> None:
    body = {"model": "demo", "prompt": "12+30=", "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    status, answer = running.ask("/v1/completions", body)
    logprobs = json.loads(answer)["choices"][0]["logprobs"]
    assert status == 200
    assert logprobs["token_logprobs"][0] is None
    assert len(logprobs["token_logprobs"]) > 2
    messages = [{"role": "user", "content": "Hello"}]
    body = {"model": "demo", "messages": messages, "logprobs": True, "top_logprobs": 20, "max_tokens": 1}
    status, answer = running.ask("/v1/chat/completions", body)
    assert len(json.loads(answer)["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 20


def test_a_socket_that_nobody_else_can_reach(running: Engine) -> None:
    assert running.socket.is_socket()
    assert not [one for one in running.api_server.net_connections() if one.status == psutil.CONN_LISTEN]
