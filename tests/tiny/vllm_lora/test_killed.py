"""A process of vLLM is killed under load, and the worker comes back; then qserve itself is killed.

What happens when the other processes are killed: tests/tiny/vllm and tests/tiny/vllm_served, as their last test, where
nobody waits for the restart.
"""

from __future__ import annotations

import psutil

from tests.tiny.serving.served import Service, until
from tests.tiny.serving.vllm_processes import (
    RESTART_LIMIT_S,
    command,
    family,
    is_zombie,
    kill_under_load,
    shared_memory,
)


async def test_a_killed_worker_comes_back(service: Service) -> None:
    await kill_under_load(service, "worker", num_streams=8, num_tokens=1900)
    until(service.is_ready, RESTART_LIMIT_S, "the worker did not come back")
    answer = service.post("/v1/completions", prompt="a", max_tokens=2)
    assert answer.status_code == 200
    assert not [process for process in family(service) if is_zombie(process)]


def test_kill_9_of_qserve_leaves_no_process_of_vllm(service: Service) -> None:
    """The last test of this file: the service does not come back."""
    until(service.is_ready, RESTART_LIMIT_S, "it is not ready")
    before = family(service)
    segments = shared_memory(before)
    assert segments
    assert {"VLLM::EngineCore", "VLLM::Worker"} <= {command(process) for process in before}
    service.process.kill()
    _, alive = psutil.wait_procs(before, timeout=60)
    assert not alive, f"qserve was killed, and these are left: {alive}"
    assert not [segment for segment in segments if segment.exists()], "shared memory was not given back"
