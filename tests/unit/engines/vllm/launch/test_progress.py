"""vLLM's counters as progress."""

from __future__ import annotations

from qserve.engines.vllm.launch.server import progress_of
from qserve.worker.heartbeat import Progress

_METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 100.0
vllm:generation_tokens_total{engine="0",model_name="m"} 40.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="m"} 9.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 42.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
"""


def test_steps_and_sequences_are_summed():
    assert progress_of(_METRICS) == Progress(182, 3)


def test_no_counters_no_progress():
    assert progress_of("") is None and progress_of("process_cpu_seconds_total 3.0\n") is None
