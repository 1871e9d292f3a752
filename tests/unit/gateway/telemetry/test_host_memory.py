"""What the gateway's process, its readers of large bodies and the web UI hold, beside what was planned."""

from __future__ import annotations

import subprocess
import sys

from qserve.gateway.telemetry.host_memory import HostMemory
from qserve.planner.memory.host import GATEWAY, LARGE_BODIES, WEB_UI
from qserve.wire.responses import HostProcessMemory

# Named as the real ones are, on their command lines.
_SLEEPER = "import sys; print('up', flush=True); sys.stdin.read()"


async def test_each_process_is_told_by_its_command_line() -> None:
    command = [sys.executable, "-c", _SLEEPER, "qserve.gateway.large_bodies"]
    readers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for reader in readers:
            assert reader.stdout is not None and reader.stdout.readline() == b"up\n"
        gateway, large, ui = await HostMemory((GATEWAY, LARGE_BODIES, WEB_UI)).documents()
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()
    assert [one["process"] for one in (gateway, large, ui)] == ["gateway", "large requests", "web UI"]
    assert gateway["resident_bytes"] > 2**20 and gateway["planned_bytes"] == GATEWAY.num_bytes
    assert gateway["difference"] == gateway["resident_bytes"] / GATEWAY.num_bytes - 1
    assert large["resident_bytes"] > 2 * 2**20, "both of them"
    assert ui["resident_bytes"] is None and ui["difference"] is None, "it was not started"
    for one in (gateway, large, ui):
        HostProcessMemory.model_validate(one)
