"""Arithmetic and pictures: percentiles, rates, histograms, bars."""

from __future__ import annotations

import math
import re
from importlib.resources import files

import pytest

from qserve.charts.html import draw, figure, stylesheet
from qserve.charts.spec import Bar, Histogram, Segment, StackedBars
from qserve.client.metrics import histograms, samples_of, total
from qserve.ui.views.latency import latency_view, live_view
from qserve.ui.views.memory import host_view, memory_view, plan_bars
from qserve.ui.views.results import comparisons_view, evals_view, runs_view
from qserve.ui.views.scores import score_bars
from qserve.ui.views.tables import probability_of, table

METRICS = """# TYPE a_seconds histogram
qserve_gateway_time_to_first_token_seconds_bucket{le="0.1",model="m"} 2.0
qserve_gateway_time_to_first_token_seconds_bucket{le="0.2",model="m"} 6.0
qserve_gateway_time_to_first_token_seconds_bucket{le="+Inf",model="m"} 8.0
qserve_gateway_time_to_first_token_seconds_count{model="m"} 8.0
qserve_gateway_time_to_first_token_seconds_sum{model="m"} 2.4
qserve_worker_generated_tokens_total{worker="chat"} 300.0
qserve_worker_kv_cache_usage_ratio{worker="chat"} 0.25
qserve_gateway_requests_running{worker="chat"} 3.0
strange{label="a \\" b, c=\\"d\\""} 1e3
no sample here
"""


def drawn_bar(*segments: Segment, total: float | None = None, label: str = "card") -> str:
    return str(draw(StackedBars((Bar(label, segments, total=total),))))


def test_prometheus_text_is_read() -> None:
    samples = samples_of(METRICS)
    assert samples[-1].labels == {"label": 'a " b, c="d"'} and samples[-1].value == 1000
    assert total(samples, "qserve_gateway_requests_running") == 3
    assert total(samples, "nothing") is None


def test_percentiles_lie_where_the_counts_say() -> None:
    one = histograms(samples_of(METRICS), "qserve_gateway_time_to_first_token_seconds", "model")["m"]
    assert one.counts == (2, 4, 2) and one.count == 8
    assert one.percentile_s(0.25) == pytest.approx(0.1)
    assert one.percentile_s(0.5) == pytest.approx(0.15)
    assert one.percentile_s(0.99) == pytest.approx(0.2), "beyond the last bound nobody knows"
    assert one.trimmed() == ([0.0, 0.1, 0.2, math.inf], [2, 4, 2])


def test_a_percentile_in_an_open_bucket_is_a_bound() -> None:
    """A median of 0.5 ms beside a mean of 0.013 ms can't be: interpolated from zero, it is half the first bound."""
    told = METRICS.replace('le="0.1",model="m"} 2.0', 'le="0.1",model="m"} 5.0')
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", latency_view(samples_of(told), "en"))
    assert "&lt; 100 ms" in cells and "&gt; 200 ms" in cells


def test_a_plan_that_does_not_fit_shows_the_capacity_and_hatches_what_is_beyond() -> None:
    full = drawn_bar(Segment("weights", 60.0, "60", "1"), Segment("runtime", 20.0, "20", "5"), total=40.0)
    (hatched,) = re.findall(r'class="beyond" style="left:([\d.]+)%;width:([\d.]+)%"', full)
    assert hatched == ("50.000", "50.000"), "as wide as the parts, the capacity in the middle"
    assert '<i class="outside" style="left:50.000%">' in full
    fitting = drawn_bar(Segment("weights", 40.0, "40", "1"), total=40.0)
    assert "beyond" not in fitting and "outside" not in fitting


def test_a_histogram_has_a_scale_of_counts() -> None:
    drawn = draw(Histogram(("0", "1", "2"), (3, 37), "good"))
    assert re.findall(r'"bottom:[\d.]+%">([\d,]+)</span>', drawn) == ["0", "20", "40"]
    assert re.search(r'y="7.500" width="[\d.]+" height="92.500"', drawn)


@pytest.mark.parametrize(
    ("count", "top"), [(1, "2"), (2, "2"), (3, "4"), (6, "6"), (7, "10"), (11, "20"), (950, "1,000")]
)
def test_the_scale_ends_at_a_round_count(count: int, top: str) -> None:
    assert f'"bottom:100.00%">{top}</span>' in draw(Histogram(("0", "1"), (count,), "good"))


def test_terms_have_the_colours_of_the_report() -> None:
    report = files("qserve.report").joinpath("page.css").read_text()
    style = files("qserve.ui").joinpath("static/style.css").read_text()
    terms = ("weights", "kv-cache", "activations", "cuda-graphs", "runtime", "optimizer", "gradients", "gathered")
    for number, term in enumerate(terms, 1):
        light, dark = re.findall(rf"--qs-{term}: (#\w+)", style)
        assert [light, dark] == re.findall(rf"--c{number}: (#\w+)", report), term
        assert set(re.findall(rf"var\(--c{number}, (#\w+)\)", stylesheet())) == {light}, "of a page that sets none"


def test_latencies_are_drawn_and_told() -> None:
    page = latency_view(samples_of(METRICS), "en")
    assert page.count("<rect") == 3 and "150 ms" in page and "300 ms" in page
    assert "No requests yet." in latency_view([], "en")


def test_rates_are_differences_and_never_negative() -> None:
    now, before = samples_of(METRICS), samples_of('qserve_worker_generated_tokens_total{worker="chat"} 100.0')
    assert "<b>100.0</b><span>tokens/s" in live_view(now, before, 2.0, "en")
    assert "<b>0.0</b><span>tokens/s" in live_view(before, now, 2.0, "en"), "a worker that was started anew"
    assert "<b>25.0 %</b>" in live_view(now, [], 0.0, "en")


def test_memory_is_drawn_for_a_worker_that_can_not_be_asked() -> None:
    worker = {"worker": "chat", "models": ["m"], "error": {"message": "it is <starting>"}, "planned": None}
    assert "it is &lt;starting&gt;" in memory_view([worker], "en")


def test_processes_without_a_model_are_told_whether_they_run_or_not() -> None:
    gateway = {"process": "gateway", "planned_bytes": 2**30, "resident_bytes": 2**29, "difference": -0.5, "source": "p"}
    page = host_view([gateway, {**gateway, "process": "web UI", "resident_bytes": None}], "en")
    assert "-50.0 %" in page and "512 MiB" in page and "not running" in page
    assert host_view([], "en") == "", "an older service does not tell"


def test_runs_and_evals_are_tables() -> None:
    run = {
        "id": "r1",
        "started_unix_s": 0,
        "duration_s": 7300,
        "state": "ended",
        "num_requests": 1234,
        "num_errors": 2,
        "workers": [{"models": ["demo", "alias"], "quant": "bf16"}],
    }
    page = runs_view([run], "en")
    assert "demo bf16" in page and "1,234" in page and "2.0 h" in page
    results = {"arc": {"acc,none": 0.5, "acc_stderr,none": 0.1, "alias": "arc"}}
    page = evals_view([{"name": "quick", "document": {"lm_eval": {"results": results}}}], "en")
    assert "0.5000" in page and "stderr" not in page
    assert evals_view([], "en") == ""


def test_quantizations_are_compared_in_a_table() -> None:
    candidate = {"quant": "bnb-nf4", "accuracy": 0.5, "stderr": 0.01, "weights_bytes": 1024, "load": {}}
    page = comparisons_view([{"document": {"advice": "take <it>", "candidates": [candidate]}}], "en")
    assert "bnb-nf4" in page and "0.5000 ± 0.0100" in page and "take &lt;it&gt;" in page
    assert comparisons_view([{"document": {}}], "en") == ""


def test_stretches_of_a_bar_are_shares_of_its_total() -> None:
    page = drawn_bar(Segment("weights", 25, "25 B", "1"), Segment("runtime", 50, "50 B", "5"), total=100)
    assert "left:0.000%;width:25.000%" in page and "left:25.000%;width:50.000%" in page
    assert 'aria-label="card: weights 25 B, runtime 50 B"' in page


def test_negative_rewards_reach_to_the_left_of_zero() -> None:
    page = draw(score_bars([("a", 1.0), ("b", -3.0)], 0))
    assert "left:75.000%;width:25.000%" in page and "left:0.000%;width:75.000%" in page
    assert draw(score_bars([("a", 0.0)], 0)), "no division by nothing"


def test_names_from_elsewhere_are_escaped() -> None:
    evil = "<script>"
    bars = [drawn_bar(Segment(evil, 1, evil, "1"), label=evil), draw(score_bars([(evil, 1.0)], 0))]
    pages = [*bars, figure(evil, Histogram((evil, evil), (1,), "good"), evil), table([evil], [[evil]])]
    assert all(evil not in page for page in pages)


def test_probability_of_a_margin() -> None:
    assert probability_of(0) == 0.5
    assert probability_of(2) == pytest.approx(0.880797) and probability_of(-2) == pytest.approx(1 - 0.880797)
    assert probability_of(-1000) == 0.0 and probability_of(1000) == 1.0


def test_cards_that_are_planned_alike_share_a_bar() -> None:
    card = {"name": "H100", "total_bytes": 80 << 30, "weights_bytes": 2 << 30}
    shown = plan_bars({"devices": [card, card, {**card, "weights_bytes": 3 << 30}]}, "en")
    assert shown.count("bar-track") == 2 and "2 × H100, each" in shown


def test_on_a_phone_each_cell_of_a_table_with_sentences_has_its_name() -> None:
    assert 'data-head="answer"' in table(["step", "answer"], [("1", "42")], numbers=(0,))
    assert "data-head" not in table(["name", "p50"], [("a", "1")], numbers=(1,))
    assert "data-head" in table(["name", *"abcd"], [("a", *"1234")], numbers=(1, 2, 3, 4)), "wider than a phone"
