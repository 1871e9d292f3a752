"""What a service holds in RAM beside its models: the gateway, its readers of large bodies, and the web UI."""

from __future__ import annotations

from dataclasses import replace

from qserve.core.hardware import Hardware, HostProcess
from qserve.units import MIB

__all__ = ["GATEWAY", "LARGE_BODIES", "RAY_DRIVER", "WEB_UI", "with_host"]

GATEWAY = HostProcess(
    "gateway",
    70 * MIB,
    63 * MIB,
    77 * MIB,
    "resident memory of `qserve up`: 64 MiB when it is ready, 71 to 74 under 64 clients (docs/results/soak.md); the "
    "bodies that are read at a time, 256 MiB at most, come and go",
)
LARGE_BODIES = HostProcess(
    "large requests",
    120 * MIB,
    40 * MIB,
    132 * MIB,
    "122 MiB in three processes that read bodies above 128 KiB, each while such bodies come (gateway/large_bodies.py)",
)
WEB_UI = HostProcess(
    "web UI",
    208 * MIB,
    188 * MIB,
    228 * MIB,
    "resident memory of Gradio's process: 195 MiB when it is ready, 212 after all pages were used (bench/ui.py)",
)
RAY_DRIVER = HostProcess(
    "gateway",
    95 * MIB,
    85 * MIB,
    105 * MIB,
    "Ray 2.60 in the process of `qserve up --ray`: 100 MB of a driver with three nodes (docs/results/scale.md), 49 MiB "
    "of them `import ray`",
)


def with_host(hardware: Hardware, has_ui: bool = True, num_gateways: int = 1, is_driver: bool = False) -> Hardware:
    """The machine with a service on it: plans on its RAM leave these bytes free.

    `has_ui`: False with --no-ui; else it is counted although it starts only when it is first opened. `num_gateways`:
    several relay in processes of their own, beside the one that they ask; each has its own readers of large bodies.
    `is_driver`: it is a driver of a Ray cluster (`qserve up --ray`).
    """
    gateway = GATEWAY if num_gateways == 1 else _times(GATEWAY, 1 + num_gateways)
    gateway = _with(gateway, RAY_DRIVER) if is_driver else gateway
    large_bodies = _times(LARGE_BODIES, num_gateways)
    return replace(hardware, host=(gateway, large_bodies, *((WEB_UI,) if has_ui else ())))


def _with(one: HostProcess, more: HostProcess) -> HostProcess:
    """What one process holds for both."""
    return replace(
        one,
        num_bytes=one.num_bytes + more.num_bytes,
        low_bytes=one.low_bytes + more.low_bytes,
        high_bytes=one.high_bytes + more.high_bytes,
        source=f"{one.source}; and {more.source}",
    )


def _times(one: HostProcess, count: int) -> HostProcess:
    """So many of them, as one."""
    if count == 1:
        return one
    return replace(
        one,
        num_bytes=count * one.num_bytes,
        low_bytes=count * one.low_bytes,
        high_bytes=count * one.high_bytes,
        source=f"{count} times: {one.source}",
    )
