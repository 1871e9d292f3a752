"""The engine's process is killed under load: its clients hear of it, and vLLM is started anew in its place.

The last file of this folder: its service is ended while vLLM starts. That one started in the place of another answers:
test_refused_plan.py, where the second start serves.
"""

from __future__ import annotations

from qserve.runs import RunStore
from tests.tiny.serving.served import Service, until
from tests.tiny.serving.vllm_processes import command, family, kill_under_load, the


async def test_a_killed_engine_is_heard_of_and_vllm_is_started_anew(service: Service) -> None:
    server = the(service, "api")
    before = command(server)
    await kill_under_load(service, "engine", num_streams=4, num_tokens=450)

    def is_started_anew() -> bool:
        return before in [command(process) for process in family(service) if process.pid != server.pid]

    until(is_started_anew, 60, lambda: f"no process of vLLM: {service.output}")
    store = RunStore.open(service.state / "qserve")
    until(lambda: "restart" in [event.event for event in store.events(store.run())], 60, "the record has no restart")
    assert service.end_as_told() == 1
