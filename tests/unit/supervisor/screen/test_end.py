"""The last lines of `qserve up` tell the truth: a request that a worker did not answer was cut off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qserve.gateway.telemetry.record import RequestRecord
from qserve.gateway.telemetry.request_rows import row_of
from qserve.supervisor.record import RunRecord
from qserve.supervisor.screen import End
from tests.golden.screens import check_screen

ANSWERED = RequestRecord("r-1", "POST", "/v1/chat/completions", status=200)
CUT_OFF = replace(ANSWERED, status=502, error_code="worker_died")


@pytest.mark.parametrize(
    ("name", "end", "status"),
    [("answered", End(), 0), ("cut-off", End(1234, 0), 1), ("stopped", End(0, 1), 1), ("both", End(2, 1), 1)],
)
def test_the_last_lines(name: str, end: End, status: int) -> None:
    check_screen(f"up-end-{name}", "\n".join(end.lines("20261122-150343-10311")))
    assert end.exit_status == status


@pytest.mark.parametrize(
    ("record", "num_cut_off"),
    [
        (ANSWERED, 0),
        (CUT_OFF, 1),
        (replace(CUT_OFF, status=200), 1),  # within a stream
        (replace(CUT_OFF, is_background=True), 0),  # a batch asks again
        (replace(CUT_OFF, is_probe=True), 0),
        (replace(ANSWERED, status=429, error_code="queue_full"), 0),
    ],
)
def test_what_counts_as_cut_off(record: RequestRecord, num_cut_off: int, tmp_path: Path) -> None:
    """Without a run store as well, and from another process."""
    kept = RunRecord(tmp_path / "one")
    kept.kept.keep(record)
    assert kept.num_cut_off == num_cut_off
    if (row := row_of(record)) is not None:
        kept.row([list(row.label), *row[1:]])
        assert kept.num_cut_off == 2 * num_cut_off


def test_a_probe_is_counted_apart_and_not_stored() -> None:
    from qserve.gateway.telemetry.metrics import GatewayMetrics

    metrics, probe = GatewayMetrics(), replace(ANSWERED, status=400, error_code="too_long", is_probe=True)
    metrics.finish(probe)
    told = metrics.exposition().decode()
    assert row_of(probe) is None
    assert 'qserve_gateway_probes_total{route="/v1/chat/completions",status="400"} 1.0' in told
    assert "qserve_gateway_requests_total{" not in told and "qserve_gateway_errors_total{" not in told
    metrics.finish(ANSWERED)
    assert "qserve_gateway_requests_total{" in metrics.exposition().decode()
