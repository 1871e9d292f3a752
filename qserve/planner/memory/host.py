"""What a service holds in RAM beside its models: the gateway, its readers of large bodies, and the web UI."""

from __future__ import annotations

from dataclasses import replace

from qserve.core.hardware import Hardware, HostProcess
from qserve.units import MIB

__all__ = ["GATEWAY", "LARGE_BODIES", "WEB_UI", "with_host"]

GATEWAY = HostProcess(
    "gateway", 70 * MIB, 63 * MIB, 77 * MIB,
    "resident memory of `qserve up`: 64 MiB when it is ready, 71 to 74 under 64 clients (docs/results/soak.md); the "
    "bodies that are read at a time, 256 MiB at most, come and go",
)  # fmt: skip
LARGE_BODIES = HostProcess(
    "large bodies", 120 * MIB, 40 * MIB, 132 * MIB,
    "122 MiB in three processes that read bodies above 128 KiB, each while such bodies come (gateway/large_bodies.py)",
)  # fmt: skip
WEB_UI = HostProcess(
    "web UI", 208 * MIB, 188 * MIB, 228 * MIB,
    "resident memory of Gradio's process: 195 MiB when it is ready, 212 after all pages were used (bench/ui.py)",
)  # fmt: skip


def with_host(hardware: Hardware, has_ui: bool = True) -> Hardware:
    """The machine with a service on it: plans on its RAM leave these bytes free.

    `has_ui`: False with --no-ui; else it is counted although it starts only when it is first opened.
    """
    return replace(hardware, host=(GATEWAY, LARGE_BODIES, *((WEB_UI,) if has_ui else ())))
