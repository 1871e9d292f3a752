"""The worker's process is killed under load: its clients hear of it, nothing is left, and vLLM is started anew.

The last file of this folder: its service is ended while vLLM starts. That one started in the place of another answers:
test_refused_plan.py, where the second start serves. The engine's process, and qserve itself: tests/tiny/vllm_served;
the API server's: what the guard then does is tests/unit/worker/test_guard.py.
"""

from __future__ import annotations

from qserve.runs import RunStore
from tests.tiny.serving.served import Service, until
from tests.tiny.serving.vllm_processes import command, family, kill_under_load, shared_memory, the


async def test_a_killed_worker_is_heard_of_leaves_nothing_and_is_started_anew(service: Service) -> None:
    server, before = the(service, "api"), family(service)
    started_by, segments = command(server), shared_memory(before)
    assert segments
    assert {"VLLM::EngineCore", "VLLM::Worker"} <= {command(process) for process in before}
    await kill_under_load(service, "worker", num_streams=8, num_tokens=1500)
    assert not [segment for segment in segments if segment.exists()], "shared memory was not given back"

    def is_started_anew() -> bool:
        return started_by in [command(process) for process in family(service) if process.pid != server.pid]

    until(is_started_anew, 60, lambda: f"no process of vLLM: {service.output}")
    store = RunStore.open(service.state / "qserve")
    until(lambda: "restart" in [event.event for event in store.events(store.run())], 60, "the record has no restart")
    assert service.end_as_told() == 1
