"""Free memory by /proc and cgroups, on trees laid out as real kernels lay them out, and on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from qserve.detect.free_memory import MemoryPool, read_free_memory
from qserve.units import GIB, MIB

MEMINFO = "MemTotal: 67108864 kB\nMemFree: 1048576 kB\nMemAvailable: 33554432 kB\nSwapFree: 2097152 kB\n"
PRESSURE = "some avg10=61.50 avg60=1.00 avg300=0.20 total=5\nfull avg10={} avg60=1.00 avg300=0.10 total=3\n"
MACHINE = MemoryPool("machine", 64 * GIB, 32 * GIB, 2 * GIB)


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_machine_without_limits(tmp_path: Path) -> None:
    root = _tree(tmp_path, {"proc/pressure/memory": PRESSURE.format("12.34"), "proc/self/cgroup": "0::/\n"})
    now = read_free_memory(root)
    assert now.pools == (MACHINE,)
    assert now.stalled_share == pytest.approx(0.1234)


def test_a_v2_limit_counts_beside_the_machine_and_all_page_cache_is_free(tmp_path: Path) -> None:
    pod = "sys/fs/cgroup/pod"
    root = _tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/container\n",
            "proc/pressure/memory": PRESSURE.format("90.00"),
            f"{pod}/memory.max": f"{8 * GIB}\n",
            f"{pod}/memory.current": f"{7 * GIB}\n",
            f"{pod}/memory.swap.max": f"{GIB}\n",
            f"{pod}/memory.swap.current": f"{512 * MIB}\n",
            f"{pod}/memory.stat": f"anon {2 * GIB}\nactive_file {GIB}\ninactive_file {3 * GIB}\n",
            f"{pod}/container/memory.max": "max\n",
            f"{pod}/container/memory.pressure": PRESSURE.format("3.00"),
        },
    )
    now = read_free_memory(root)
    assert now.pools == (MACHINE, MemoryPool("cgroup pod", 8 * GIB, 5 * GIB, 512 * MIB))
    assert now.stalled_share == pytest.approx(0.03), "of our own processes, not of the machine's"


def test_a_v1_limit_counts_what_is_below_it(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/4f2a\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
            "sys/fs/cgroup/memory/memory.memsw.limit_in_bytes": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory/memory.memsw.usage_in_bytes": f"{3 * GIB}\n",
            "sys/fs/cgroup/memory/memory.stat": f"inactive_file 5\ntotal_inactive_file {2 * MIB}\n",
        },
    )
    now = read_free_memory(root)
    assert now.pools[1] == MemoryPool("cgroup memory", 4 * GIB, GIB + 2 * MIB, 0)
    assert now.stalled_share == 0, "this kernel counts no pressure"


def test_a_limit_above_the_ram_is_none(tmp_path: Path) -> None:
    root = _tree(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{900 * GIB}\n"})
    assert read_free_memory(root).pools == (MACHINE,)


def test_the_cache_of_zfs_is_free_down_to_its_least(tmp_path: Path) -> None:
    stats = f"9 1 0x01 147 39984 1 2\nname  type data\nc_min  4  {2 * GIB}\nsize  4  {9 * GIB}\n"
    root = _tree(tmp_path, {"proc/self/cgroup": "0::/\n", "proc/spl/kstat/zfs/arcstats": stats})
    assert read_free_memory(root).machine.available_bytes == (32 + 7) * GIB


def test_a_system_without_proc_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no MemAvailable"):
        read_free_memory(tmp_path)


def test_this_machine() -> None:
    now = read_free_memory()
    assert 0 < now.machine.available_bytes <= now.machine.total_bytes
    assert 0 <= now.stalled_share <= 1
