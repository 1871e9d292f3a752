"""The demo model on real vLLM, started from its plan: what comes out is what was planned."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from qserve.engine.vllm.log import figures_of, phase_of
from qserve.engine.vllm.measured import measured_memory
from qserve.engine.vllm.processes import process_figures
from qserve.units import MIB
from tests.processes import words
from tests.tiny.vllm.engines import KEY, Engine, engine, plan_of
from tests.unit.vllm.builders import parser_for


@pytest.fixture(scope="module")
def running(parser):
    with engine(parser, plan_of(quant="bf16"), "--seed 7") as started:
        assert started.process.poll() is None, "\n".join(started.log[-30:])
        yield started


def test_the_flags_are_those_that_unit_tests_take_for_this_release(parser):
    if parser.version != "0.32.0":
        pytest.skip("the file holds 0.28 to 0.32.0")
    assert parser == parser_for("0.32.0")


def test_the_cache_is_the_planned_one_to_the_token(running: Engine):
    _, metrics = running.ask("/metrics")
    figures = figures_of(running.log)
    memory = measured_memory(figures, metrics.decode(), process_figures(running.process.pid))
    assert figures.kv_cache_tokens == memory["kv_cache_tokens"] == running.plan.kv_cache_tokens
    assert memory["kv_cache_bytes"] == running.plan.placement.kv_cache_memory_bytes
    assert memory["max_concurrency"] == pytest.approx(running.plan.max_concurrency, rel=0.01)


def test_memory_is_counted_over_all_its_processes(running: Engine):
    figures = process_figures(running.process.pid)
    assert figures.num_processes >= 3  # API server, engine core, worker
    assert 500 * MIB < figures.unique_bytes <= figures.resident_bytes
    single = psutil.Process(running.process.pid).memory_full_info()
    assert figures.resident_bytes > 2 * single.pss


def test_the_start_is_told_phase_by_phase_and_in_seconds(running: Engine):
    phases = [phase for line in running.log if (phase := phase_of(line))]
    assert phases == [
        "starting the engine's processes", "loading weights", "making the KV cache", "starting the server", "ready",
    ]  # fmt: skip
    figures = figures_of(running.log)
    assert figures.version == "0.32.0"
    assert figures.weights_seconds is not None
    assert figures.phase_seconds["starting the engine's processes"] > 0


def test_all_names_and_limits_are_served(running: Engine):
    status, body = running.ask("/v1/models")
    cards = json.loads(body)["data"]
    assert status == 200
    assert [card["id"] for card in cards] == ["demo", "another/name"]
    assert {card["max_model_len"] for card in cards} == {running.plan.workload.max_model_len}


def test_the_key_guards_it_and_no_command_line_shows_it(running: Engine):
    assert running.ask("/v1/models", key="another")[0] == 401
    processes = [psutil.Process(running.process.pid), *psutil.Process(running.process.pid).children(recursive=True)]
    lines = [" ".join(words(process)) for process in processes]
    assert len(lines) >= 3
    assert not [line for line in lines if KEY in line]
    assert KEY not in "\n".join(running.log)


def test_answers_come_as_content(running: Engine):
    """Not as thoughts: a parser for those would have taken all of it."""
    question = {"role": "user", "content": "What is 12+30?"}
    body = {"model": "demo", "messages": [question], "temperature": 0, "max_tokens": 16}
    status, answer = running.ask("/v1/chat/completions", body)
    assert status == 200, answer
    assert "42" in json.loads(answer)["choices"][0]["message"]["content"]


def test_what_lm_eval_asks_needs_no_further_flag(running: Engine):
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


def test_tools_may_be_offered(running: Engine):
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "tools": [tool], "max_tokens": 8}
    assert running.ask("/v1/chat/completions", body)[0] == 200


def test_a_socket_that_nobody_else_can_reach(running: Engine):
    assert Path(running.socket).is_socket()
    assert not [c for c in psutil.Process(running.process.pid).net_connections() if c.status == psutil.CONN_LISTEN]
