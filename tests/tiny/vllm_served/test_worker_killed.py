"""The engine's process is killed under load. The last file of this folder: its service is ended afterwards."""

from __future__ import annotations

from tests.tiny.serving.served import Service
from tests.tiny.serving.vllm_processes import kill_under_load
from tests.tiny.vllm_served.conftest import KEY, NUM_PLACES


async def test_a_killed_engine_is_heard_of(service: Service) -> None:
    await kill_under_load(service, "engine", NUM_PLACES, num_tokens=900, key=KEY)
    assert service.end() == 0, "else it would start anew, for nobody"
