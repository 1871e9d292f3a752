"""kill -9 of qserve leaves no process of vLLM. tests/conftest.py runs it last: nothing is served afterwards."""

from __future__ import annotations

import psutil

from tests.tiny.serving.served import Service
from tests.tiny.serving.vllm_processes import command, family, shared_memory


def test_kill_9_of_qserve_leaves_no_process_of_vllm(service: Service) -> None:
    before = family(service)
    segments = shared_memory(before)
    assert any("VLLM::EngineCor" in command(process) for process in before)
    service.process.kill()
    _, alive = psutil.wait_procs(before, timeout=60)
    assert not alive, f"qserve was killed, and these are left: {alive}"
    assert not [segment for segment in segments if segment.exists()], "shared memory was not given back"
