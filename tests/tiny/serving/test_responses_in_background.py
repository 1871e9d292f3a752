"""Background responses of a real service whose worker and gateway process are killed in the middle: nothing is lost."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from tests.processes import words
from tests.tiny.serving.served import Service, until

PATH = "/v1/responses"
ASK = {
    "model": "demo",
    "input": "What is 12+30?",
    "temperature": 1.2,
    "seed": 5,
    "max_output_tokens": 1500,
    "ignore_eos": True,
    "background": True,
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    one = Service(("--model", "demo", "--gateway-processes", "2"), tmp_path_factory.mktemp("background"))
    yield one.until_ready()
    assert one.end_as_told() == 0


@pytest.fixture(scope="module")
def undisturbed(service: Service) -> dict[str, Any]:
    return last_of(service, httpx.post(service.url + PATH, json=ASK, timeout=60).json()["id"])


def last_of(service: Service, response_id: str) -> dict[str, Any]:
    response: dict[str, Any] = {}

    def is_over() -> bool:
        response.update(service.get(f"{PATH}/{response_id}").json())
        return response["status"] not in ("queued", "in_progress")

    until(is_over, 120, lambda: f"the response is over: {response}")
    return response


def told(response: dict[str, Any]) -> list[tuple[str, str]]:
    return [(item["type"], part["text"]) for item in response["output"] for part in item["content"]]


def gateways(service: Service) -> list[psutil.Process]:
    children = psutil.Process(service.process.pid).children()
    return [one for one in children if "qserve.supervisor.gateway_process" in words(one)]


def read(lines: Iterator[str], until_number: int | None = None) -> list[dict[str, Any]]:
    """Events up to this number, or to the end, or to where the connection breaks."""
    events = []
    try:
        for line in lines:
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
                if events[-1]["sequence_number"] == until_number:
                    break
    except httpx.TransportError:
        pass
    return events


def test_the_worker_is_killed_in_the_middle(service: Service, undisturbed: dict[str, Any]) -> None:
    assert undisturbed["status"] == "incomplete" and undisturbed["usage"]["output_tokens"] == 1500
    with httpx.stream("POST", service.url + PATH, json={**ASK, "stream": True}, timeout=120) as reply:
        first = read(reply.iter_lines(), 20)
        worker = service.worker()
        assert worker is not None
        worker.kill()
    response_id = first[0]["response"]["id"]
    last = last_of(service, response_id)
    assert last["status"] == "incomplete" and told(last) == told(undisturbed) and last["usage"] == undisturbed["usage"]
    assert service.gauge("qserve_gateway_streams_continued_total") == 1
    with httpx.stream("GET", f"{service.url}{PATH}/{response_id}?stream=true&starting_after=20", timeout=60) as reply:
        events = first + read(reply.iter_lines())
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    assert "".join(one["delta"] for one in events if "output_text.delta" in one["type"]) == "".join(
        text for kind, text in told(last) if kind == "message"
    )


def test_the_gateway_process_is_killed_in_the_middle(service: Service, undisturbed: dict[str, Any]) -> None:
    until(service.is_ready, 120, "the worker is back")
    until(lambda: len(gateways(service)) == 2, 60, "two processes")
    victim, other = gateways(service)
    other.suspend()
    try:  # so that the victim accepts it
        with httpx.stream("POST", service.url + PATH, json={**ASK, "stream": True}, timeout=120) as reply:
            lines = reply.iter_lines()
            first = read(lines, 20)
            victim.kill()
            other.resume()
            first += read(lines)
    finally:
        if other.is_running():
            other.resume()
    assert first[-1]["type"] != "response.incomplete", "it was over before the process was killed"
    query = f"stream=true&starting_after={first[-1]['sequence_number']}"
    with httpx.stream("GET", f"{service.url}{PATH}/{first[0]['response']['id']}?{query}", timeout=120) as reply:
        events = first + read(reply.iter_lines())
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    assert told(events[-1]["response"]) == told(undisturbed)
    until(lambda: len(gateways(service)) == 2, 60, "another process")
    assert {last_of(service, first[0]["response"]["id"])["status"] for _ in range(6)} == {"incomplete"}


def test_what_is_long_goes_over_whole_and_all_is_counted_once(service: Service) -> None:
    count = 'qserve_gateway_requests_total{model="demo",route="/v1/responses",status="200"}'
    before = sample(service, count)
    notes = {"note": 'Zürich "x" 中文 ' * 30_000}
    body = {**ASK, "max_output_tokens": 4, "client_metadata": notes}
    reply = httpx.post(service.url + PATH, json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    assert len(told(last_of(service, reply.json()["id"]))) == 1
    assert sample(service, count) == before + 1
    assert service.gauge("qserve_gateway_background_bytes") > 0
    refused = httpx.post(service.url + PATH, json={**ASK, "temperature": 9}, timeout=60)
    assert refused.status_code == 400 and "temperature" in refused.text
    slot = httpx.post(service.url + PATH, json={**ASK}, timeout=60).json()
    cancelled = httpx.post(f"{service.url}{PATH}/{slot['id']}/cancel", timeout=60).json()
    assert cancelled["status"] == "cancelled"
    until(lambda: service.num_running() == 0, 30, "its slot is free")


def sample(service: Service, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", service.get("/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0
