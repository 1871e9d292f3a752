"""The worker's process is killed under load. The last file of this folder: its service is ended afterwards.

The engine's process: tests/tiny/vllm; qserve itself: tests/tiny/vllm_served; the API server's: what the guard then does
is tests/unit/worker/test_guard.py. That a worker comes back: tests/tiny/serving/test_worker_faults.py, and that vLLM is
started anew in its place: tests/tiny/vllm/test_restart.py.
"""

from __future__ import annotations

from tests.tiny.serving.served import Service, until
from tests.tiny.serving.vllm_processes import RESTART_LIMIT_S, command, family, kill_under_load, shared_memory


async def test_a_killed_worker_is_heard_of_and_leaves_nothing(service: Service) -> None:
    until(service.is_ready, RESTART_LIMIT_S, "it is not ready")
    before = family(service)
    segments = shared_memory(before)
    assert segments
    assert {"VLLM::EngineCore", "VLLM::Worker"} <= {command(process) for process in before}
    await kill_under_load(service, "worker", num_streams=8, num_tokens=1900)
    assert not [segment for segment in segments if segment.exists()], "shared memory was not given back"
    assert service.end_as_told() == 1, "ended now, else it would start anew, for nobody"
