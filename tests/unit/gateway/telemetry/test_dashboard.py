"""configs/grafana/qserve.json asks only for what the gateway tells; the workers' metrics are held against real ones."""

from __future__ import annotations

import json
import re

import pytest

from qserve.gateway.relay.upstream import Upstream
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.telemetry.metrics import GatewayMetrics
from qserve.gateway.telemetry.record import RequestRecord
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus
from tests.dashboard import DASHBOARD, EXPRESSIONS, METRICS, PANELS, samples_of


def _scrape(*upstreams):
    metrics = GatewayMetrics()
    metrics.watch_workers(upstreams)
    return metrics.exposition().decode()


def _worker(tmp_path):
    devices = [{f"{term}_bytes": 10 for term in ("weights", "kv_cache", "activations", "cuda_graphs", "runtime")}] * 2
    status = WorkerStatus(
        WorkerFacts("chat", ("demo",), UnixAddress(tmp_path / "x"), "k", 4, 100, plan={"devices": devices}),
        num_restarts=3,
        state=WorkerState.RESTARTING,
    )
    return Upstream(status, GatewaySettings())


def test_the_gateways_metrics_are_all_there(tmp_path):
    upstream = _worker(tmp_path)
    upstream.measured = {"weights_bytes": 11, "resident_bytes": 50}
    own = {name for name in METRICS if name.startswith("qserve_gateway_")}
    assert len(own) > 15
    assert own <= samples_of(_scrape(upstream))


def test_every_metric_of_the_gateway_is_drawn_somewhere():
    drawn = {re.sub(r"_(bucket|sum|count)$", "", name) for name in METRICS}
    told = set(re.findall(r"^# TYPE (qserve_gateway_\S+) ", _scrape(), re.MULTILINE))
    assert told <= drawn, "a metric that nobody looks at"


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_each_panel_says_what_it_shows(panel):
    assert panel["description"].endswith(".") and panel["targets"]
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


def test_panels_lie_in_a_grid_and_have_ids_of_their_own():
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    taken = set()
    for place in places:
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_brackets_close(expression):
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing)


def test_a_worker_tells_state_restarts_and_memory(tmp_path):
    upstream = _worker(tmp_path)
    upstream.measured = {"weights_bytes": 11, "kv_cache_bytes": None, "resident_bytes": 50}
    lines = _scrape(upstream).splitlines()
    assert 'qserve_gateway_worker_state{state="restarting",worker="chat"} 1.0' in lines
    assert 'qserve_gateway_worker_state{state="ready",worker="chat"} 0.0' in lines
    assert 'qserve_gateway_worker_restarts_total{worker="chat"} 3.0' in lines
    assert 'qserve_gateway_memory_planned_bytes{device="1",term="runtime",worker="chat"} 10.0' in lines
    assert 'qserve_gateway_memory_measured_bytes{term="weights",worker="chat"} 11.0' in lines
    assert 'qserve_gateway_worker_resident_memory_bytes{worker="chat"} 50.0' in lines
    assert not any("memory_measured" in line and "kv_cache" in line for line in lines), "not told is not zero"


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}, 9),
        ({"input_tokens": 9, "input_tokens_details": {"cached_tokens": 8}, "output_tokens": 2}, 9),
        ({"input_tokens": 1, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 5, "output_tokens": 2}, 9),
        ({"input_tokens": 9, "cache_creation_input_tokens": None, "output_tokens": 2}, 9),
    ],
)
def test_tokens_of_a_prompt_are_counted_cached_or_not(usage, counted):
    """Anthropic's are three numbers, of which the first leaves the cached ones out."""
    record = RequestRecord("0a", "POST", "/v1/messages")
    GatewayMetrics().count_usage(record, json.dumps({"id": "a", "usage": usage}).encode())
    assert (record.num_prompt_tokens, record.num_generated_tokens) == (counted, 2)
