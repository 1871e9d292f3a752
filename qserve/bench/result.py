"""A finished load as JSON and CSV. A stage's figures carry the names that `vllm bench serve` gives them."""

from __future__ import annotations

import csv
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qserve.bench.metrics import Distribution, StageFigures
from qserve.bench.records import RequestRecord
from qserve.bench.run import StageRun
from qserve.bench.saturation import Saturation
from qserve.csv_cells import written_cell
from qserve.errors import UsageError
from qserve.version import __version__

__all__ = ["BenchResult"]

_SPREADS = ("ttft", "tpot", "itl", "e2el")


@dataclass(frozen=True)
class BenchResult:
    """All of it.

    Attributes:
        server: url, model, engine, and the id of its run where it is a qserve.
        load: what was asked for, every option.
        runs, figures: stage by stage, in the order they ran.
        generator: what measuring cost.
    """

    began_unix_s: float
    server: Mapping[str, Any]
    load: Mapping[str, Any]
    runs: Sequence[StageRun]
    figures: Sequence[StageFigures]
    saturation: Saturation | None
    generator: Mapping[str, float]
    notes: Sequence[str]

    def to_json(self, with_requests: bool = True) -> dict[str, Any]:
        """Args: with_requests: every request with its raw times, in milliseconds."""
        stages = []
        for run, figures in zip(self.runs, self.figures, strict=True):
            requests = {"requests": [_request(record) for record in run.records]} if with_requests else {}
            stages.append({**_stage(figures), "began_unix_s": round(run.began_unix_s, 3), **requests})
        return {
            "object": "bench",
            "qserve_version": __version__,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.began_unix_s)),
            "server": dict(self.server),
            "load": {name: _json_value(value) for name, value in self.load.items()},
            "stages": stages,
            "saturation": None if self.saturation is None else asdict(self.saturation),
            "generator": dict(self.generator),
            "notes": list(self.notes),
        }

    def save(self, file: Path) -> None:
        """As JSON. Raises UsageError where it can't be written."""
        _write(file, json.dumps(self.to_json(), ensure_ascii=False))

    def save_csv(self, file: Path) -> None:
        """A line for each request of each stage. Raises UsageError where it can't be written."""
        try:
            with file.open("w", newline="") as out:
                rows = csv.writer(out)
                rows.writerow(_COLUMNS)
                for run in self.runs:
                    rows.writerows(map(written_cell, _row(run, record)) for record in run.records)
        except OSError as error:
            raise UsageError(f"{file} can't be written: {error.strerror}") from error


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text + "\n")
    except OSError as error:
        raise UsageError(f"{file} can't be written: {error.strerror}") from error


def _stage(figures: StageFigures) -> dict[str, Any]:
    stage = figures.stage
    return {
        "name": stage.name,
        "max_concurrency": stage.concurrency,
        "request_rate": stage.request_rate,
        "burstiness": _json_value(stage.burstiness),
        "burst_size": stage.burst_size,
        "duration": round(figures.duration_s, 6),
        "completed": figures.completed,
        "failed": figures.failed,
        "cut_off": figures.num_cut_off,
        "errors": dict(figures.errors),
        "error_sentences": dict(figures.error_sentences),
        "total_input_tokens": figures.total_input_tokens,
        "total_output_tokens": figures.total_output_tokens,
        "total_texts": figures.total_texts,
        "request_throughput": figures.request_throughput,
        "request_goodput": figures.request_goodput,
        "output_throughput": figures.output_throughput,
        "total_token_throughput": figures.total_token_throughput,
        "text_throughput": figures.text_throughput,
        **{key: value for name in _SPREADS for key, value in _spread(name, getattr(figures, name)).items()},
        "median_first_event_ms": figures.announced.p50,
        "p99_lag_ms": figures.lag.p99,
        "kept_up": figures.kept_up,
        "generator_cpu_share": figures.cpu_share,
    }


def _json_value(value: Any) -> Any:
    """JSON has no number for `--burstiness inf`."""
    return "inf" if value == math.inf else value


def _spread(name: str, spread: Distribution) -> dict[str, float | None]:
    """None where nothing was measured: a zero would be a very good figure."""
    values = {
        "mean": spread.mean,
        "median": spread.p50,
        "std": spread.std,
        "p90": spread.p90,
        "p99": spread.p99,
        "max": spread.most,
    }
    return {f"{kind}_{name}_ms": value if spread.num_values else None for kind, value in values.items()}


def _request(record: RequestRecord) -> dict[str, Any]:
    row: dict[str, Any] = {
        "index": record.index,
        "due_ms": _ms(record.due_s),
        "start_ms": _ms(record.start_s),
        "first_event_ms": _ms(record.announced_s) if record.chunk_s else None,
        "chunk_ms": [_ms(one) for one in record.chunk_s],
        "end_ms": _ms(record.end_s),
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
    }
    if record.num_texts > 1:
        row["num_texts"] = record.num_texts
    if record.failure is not None:
        row["error"] = asdict(record.failure)
    return row


_COLUMNS = (
    "stage",
    "index",
    "due_ms",
    "start_ms",
    "ttft_ms",
    "tpot_ms",
    "e2el_ms",
    "prompt_tokens",
    "output_tokens",
    "texts",
    "error",
)


def _row(run: StageRun, record: RequestRecord) -> tuple[Any, ...]:
    return (
        run.stage.name,
        record.index,
        _ms(record.due_s),
        _ms(record.start_s),
        *("" if value is None else _ms(value) for value in (record.ttft_s, record.tpot_s)),
        _ms(record.e2e_s),
        record.prompt_tokens,
        record.output_tokens,
        record.num_texts,
        "" if record.failure is None else record.failure.kind,
    )


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)
