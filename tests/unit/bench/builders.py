"""Records and stages for tests."""

from __future__ import annotations

from qserve.bench.load import Stage
from qserve.bench.metrics import figures_of
from qserve.bench.records import Failure, RequestRecord
from qserve.bench.run import StageRun


def record(start_s=0.0, chunk_s=(0.1, 0.2, 0.3), output_tokens=3, prompt_tokens=10, index=0, **fields):
    chunks = list(chunk_s)
    end_s = fields.pop("end_s", chunks[-1] if chunks else 0.5)
    announced = fields.pop("announced_s", chunks[0] if chunks else 0.0)
    return RequestRecord(
        index, fields.pop("due_s", start_s), start_s, announced, chunks, end_s, prompt_tokens, output_tokens, **fields
    )


def failed(kind="HTTP 500", **fields):
    return record(**{"chunk_s": (), **fields}, failure=Failure(kind, f"{kind}: a sentence"))


def run_of(records, stage=None, duration_s=1.0):
    return StageRun(stage or Stage(concurrency=1), 0.0, list(records), duration_s)


def figures(concurrency, ttft_s, tpot_s, rate, *, num=4, num_tokens=11, request_rate=None):
    """A stage of equal requests that yields `rate` output tokens a second."""
    chunks = [ttft_s + number * tpot_s for number in range(num_tokens)]
    stage = Stage(request_rate=request_rate) if request_rate else Stage(concurrency=concurrency)
    same = [record(chunk_s=chunks, output_tokens=num_tokens, index=number) for number in range(num)]
    return figures_of(run_of(same, stage, num * num_tokens / rate), {})
