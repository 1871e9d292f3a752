"""Merging Prometheus texts: still one valid exposition, every sample there, each worker's labelled."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from qserve.gateway.telemetry.exposition import merge

VLLM = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a\\"b,worker=\\"x\\""} 3.0
# HELP vllm:e2e_seconds Latency.
# TYPE vllm:e2e_seconds histogram
vllm:e2e_seconds_bucket{le="0.5"} 1
vllm:e2e_seconds_bucket{le="+Inf"} 2
vllm:e2e_seconds_sum 1.5
vllm:e2e_seconds_count 2
untyped_thing 5 1700000000000
"""


def _own():
    registry = CollectorRegistry()
    Counter("own_requests", "Requests", ["route"], registry=registry).labels("/x").inc(4)
    Histogram("own_seconds", "Seconds", buckets=(1, 2), registry=registry).observe(1.5)
    return generate_latest(registry).decode()


def _samples(text):
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families if family.type not in {"unknown", "untyped"}]
    assert len(names) == len(set(names)), "a family appears twice"
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_two_workers_share_the_headers_and_keep_their_samples():
    text = merge(_own(), [("chat", VLLM), ("reward", VLLM)])
    samples = _samples(text)
    assert text.count("# TYPE vllm:e2e_seconds histogram") == 1
    for worker in ("chat", "reward"):
        assert samples["vllm:e2e_seconds_bucket", (("le", "0.5"), ("worker", worker))] == 1
        assert samples["vllm:e2e_seconds_count", (("worker", worker),)] == 2
        labels = (("engine", "0"), ("model_name", 'a"b,worker="x"'), ("worker", worker))
        assert samples["vllm:num_requests_running", labels] == 3
        assert samples["untyped_thing", (("worker", worker),)] == 5


def test_the_gateways_own_text_is_unchanged():
    own = _own()
    assert _samples(merge(own, [])) == _samples(own)
    assert _samples(own).items() <= _samples(merge(own, [("chat", VLLM)])).items()


def test_a_family_that_both_have_is_one_family():
    registry = CollectorRegistry()
    Gauge("process_resident_memory_bytes", "RSS", registry=registry).set(7)
    text = generate_latest(registry).decode()
    samples = _samples(merge(text, [("chat", text)]))
    assert samples == {
        ("process_resident_memory_bytes", ()): 7,
        ("process_resident_memory_bytes", (("worker", "chat"),)): 7,
    }


def test_a_label_worker_of_the_workers_own_is_kept_beside_ours():
    samples = _samples(merge("", [("chat", 'x{worker="3"} 1\n')]))
    assert samples == {("x", (("exported_worker", "3"), ("worker", "chat"))): 1}


def test_names_that_begin_alike_stay_apart():
    text = "# TYPE a counter\na_total 1\n# TYPE a_total_b gauge\na_total_b 2\n"
    assert set(_samples(merge("", [("w", text)]))) == {
        ("a_total", (("worker", "w"),)),
        ("a_total_b", (("worker", "w"),)),
    }


def test_nonsense_lines_are_left_out():
    assert merge("", [("w", "<html>\nx{ 1\n# EOF\n")]) == "\n"
