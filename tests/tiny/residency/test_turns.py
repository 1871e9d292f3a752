"""A real service whose models take turns in memory: two chat models and a reward model, of which one fits at a time."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from qserve.cli.train.beside import room_in
from tests.tiny.serving.served import QSERVE, Service, until

FILE = """
models:
  - {model: demo, served_model_name: [first], max_model_len: 512}
  - {model: demo, served_model_name: [second], max_model_len: 512}
  - {reward: demo, served_reward_name: [scores]}
residency: {memory: 1000MiB, window: 2}
gateway_processes: 2
ui: false
"""
ASKED = [{"role": "user", "content": "What is 12+30?"}]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("turns")
    file = folder / "service.yaml"
    file.write_text(FILE)
    one = Service(("--config", str(file)), folder)
    yield one.until_ready()
    assert one.end_as_told() == 0, one.output


@pytest.fixture(scope="module")
def http(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=300) as one:
        yield one


def states(http: httpx.Client) -> dict[str, str]:
    return {row["models"][0]: row["state"] for row in http.get("/v1/qserve/models").json()["data"]}


def answer(http: httpx.Client, model: str) -> str:
    reply = http.post("/v1/chat/completions", json={"model": model, "messages": ASKED, "max_tokens": 8})
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


def score(http: httpx.Client) -> float:
    reply = http.post("/v1/reward", json={"model": "scores", "prompt": "What is 12+30?", "responses": ["42"]})
    assert reply.status_code == 200, reply.text
    return float(reply.json()["data"][0]["reward"])


def streamed(service: Service, model: str) -> tuple[str, int]:
    """The text of a stream, and how many comments came before it."""
    text, num_comments = "", 0
    body = {"model": model, "messages": ASKED, "max_tokens": 8, "stream": True}
    with (
        httpx.Client(base_url=service.url, timeout=300) as http,
        http.stream("POST", "/v1/chat/completions", json=body) as reply,
    ):
        assert reply.status_code == 200
        for line in reply.iter_lines():
            num_comments += line.startswith(": the model is being loaded")
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
    return text, num_comments


def test_the_first_is_there_and_the_service_is_ready(service: Service, http: httpx.Client) -> None:
    assert states(http) == {"first": "ready", "second": "idle", "scores": "idle"}
    assert http.get("/ready").status_code == 200
    cards = {card["id"]: card for card in http.get("/v1/models").json()["data"]}
    assert {name: card["state"] for name, card in cards.items()} == states(http)
    assert all(card["planned_bytes"] > 100 << 20 for card in cards.values())
    assert "loaded on demand" in service.output


def test_requests_for_all_at_once_are_all_answered(service: Service, http: httpx.Client) -> None:
    """Two processes of the gateway, streams and whole answers, scores; one model at a time."""
    expected = answer(http, "first")
    assert expected == "42"
    with ThreadPoolExecutor(12) as pool:
        whole = [pool.submit(answer, http, name) for name in ("second", "first", "second", "first")]
        streams = [pool.submit(streamed, service, name) for name in ("second", "first")]
        scores = [pool.submit(score, http) for _ in range(2)]
        seen: set[str] = set()
        while not all(one.done() for one in (*whole, *streams, *scores)):
            now = states(http)
            assert sum(state not in ("idle",) for state in now.values()) <= 1, now
            seen |= {name for name, state in now.items() if state == "ready"}
    assert [one.result() for one in whole] == [expected] * 4
    assert {one.result()[0] for one in streams} == {expected}
    assert len({one.result() for one in scores}) == 1
    assert seen == {"first", "second", "scores"}


def test_most_loads_began_in_a_process_that_stood_by(service: Service) -> None:
    assert sum(log.read_text().count("worker stands by") for log in service.state.rglob("*.log")) >= 2
    loads = [event for event in _events(service) if event["event"] == "loaded"]
    assert len(loads) >= 3 and all(event["details"]["peak_bytes"] > 100 << 20 for event in loads)


def _events(service: Service) -> list[dict[str, Any]]:
    (run,) = service.get("/v1/qserve/runs").json()["data"]
    return list(service.get(f"/v1/qserve/runs/{run['id']}").json()["events"])


def test_loads_and_waits_are_counted(http: httpx.Client) -> None:
    told = http.get("/metrics").text
    for name in ("first", "second", "scores"):
        loads, served, waited = (_count(told, metric, name) for metric in ("loads", "served_seconds", "waited_seconds"))
        assert loads > 0 and served > 0
        assert waited > 0 or (name, loads) == ("first", 1), "the first was there before anyone asked"


def _count(told: str, metric: str, name: str) -> float:
    (found,) = re.findall(rf'^qserve_gateway_model_{metric}_total{{worker="{name}"}} (\S+)$', told, re.MULTILINE)
    return float(found)


def test_a_model_that_dies_while_it_loads_tells_who_waits_and_the_other_comes_back(
    service: Service, http: httpx.Client
) -> None:
    (there,) = (name for name, state in states(http).items() if state == "ready")
    other = "second" if there != "second" else "first"
    body = {"model": other, "messages": ASKED, "max_tokens": 8}
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(httpx.post, f"{service.url}/v1/chat/completions", json=body, timeout=300)
        until(lambda: states(http)[other] == "starting" and service.worker() is not None, 60, "it is being loaded")
        worker = service.worker()
        assert worker is not None
        worker.send_signal(signal.SIGKILL)
        assert reply.result().status_code == 503
    error = reply.result().json()["error"]
    assert "it could not be loaded" in error["message"] and int(reply.result().headers["retry-after"]) > 0
    until(lambda: states(http)[there] == "ready", 120, "the other is back")
    assert states(http)[other] == "failed"


def test_a_training_run_has_room_and_gives_it_back(service: Service, http: httpx.Client) -> None:
    with room_in(service.url, "", "wait") as room, ThreadPoolExecutor(1) as pool:
        assert room is not None
        assert set(states(http).values()) <= {"idle", "failed"}
        asked = pool.submit(answer, http, "first")
        time.sleep(1)
        assert not asked.done() and states(http)["first"] == "idle"
        room.shrink(1 << 20, 0)  # one model fits beside so little
        assert asked.result() == "42"
        room.shrink(2 << 30, 0)
        until(lambda: states(http)["first"] == "idle", 60, "it left again")
    assert answer(http, "first") == "42"


def test_the_operators_commands(service: Service, http: httpx.Client) -> None:
    def qserve(*words: str) -> tuple[int, str]:
        done = subprocess.run([str(QSERVE), *words, "--url", service.url], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    http.post("/v1/qserve/models/first/load")
    until(lambda: states(http)["first"] == "ready", 120, "it is loaded")
    status, told = qserve("ps")
    assert status == 0 and "first" in told and "in memory" in told and "second" in told
    status, told = qserve("stop", "first")
    assert status == 0, told
    assert states(http)["first"] == "idle"
    status, told = qserve("stop", "another")
    assert status != 0 and "is not served here; there is 'first'" in told
