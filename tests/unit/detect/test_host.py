"""RAM and cores under cgroup limits, on trees laid out as real kernels lay them out, and on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qserve.core.hardware import Hardware
from qserve.detect import detect
from qserve.detect.host import count_cores, count_numa_nodes, count_physical_cores, read_cpu, read_memory
from qserve.units import GIB, MIB

MEMINFO = "MemTotal:       67108864 kB\nMemFree:        1048576 kB\nMemAvailable:   33554432 kB\nHugePages_Total:   0\n"


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_limits_the_machine_counts(tmp_path: Path) -> None:
    root = _tree(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"})
    assert read_memory(root).total_bytes == 64 * GIB
    assert read_memory(root).available_bytes == 32 * GIB


def test_a_v2_limit_on_an_ancestor_counts(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/container\n",
            "sys/fs/cgroup/pod/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/pod/memory.current": f"{5 * GIB}\n",
            "sys/fs/cgroup/pod/memory.stat": f"anon {2 * GIB}\ninactive_file {3 * GIB}\n",
            "sys/fs/cgroup/pod/container/memory.max": "max\n",
        },
    )
    assert read_memory(root).total_bytes == 8 * GIB
    assert read_memory(root).available_bytes == 6 * GIB  # page cache is given back first


def test_a_v1_container_sees_only_its_mount(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/4f2a\n3:cpu,cpuacct:/docker/4f2a\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{1 * GIB}\n",
            "sys/fs/cgroup/memory/memory.stat": f"inactive_file 5\ntotal_inactive_file {512 * MIB}\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert read_memory(root).total_bytes == 4 * GIB
    assert read_memory(root).available_bytes == 3 * GIB + 512 * MIB
    assert count_cores(root, affinity=16) == 2


def test_a_v1_limit_that_means_none(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n1:cpu:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert read_memory(root).total_bytes == 64 * GIB
    assert count_cores(root, affinity=16) == 16


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 8), ("400000 100000", 4), ("50000 100000", 1)])
def test_a_v2_quota_cuts_the_cores(tmp_path: Path, quota: str, cores: int) -> None:
    root = _tree(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": quota + "\n"})
    assert count_cores(root, affinity=8) == cores


def test_a_hybrid_tree_is_read_by_controller(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n0::/\n",
            "sys/fs/cgroup/unified/memory.max": "max\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{2 * GIB}\n",
        },
    )
    assert read_memory(root).total_bytes == 2 * GIB


def test_arm_and_x86_flags(tmp_path: Path) -> None:
    x86 = _tree(tmp_path / "x86", {"proc/cpuinfo": "model name\t: AMD EPYC\nflags\t\t: fpu avx512_bf16 avx512_vnni\n"})
    arm = _tree(tmp_path / "arm", {"proc/cpuinfo": "Features\t: fp asimd bf16 i8mm\n"})
    assert read_cpu(x86).formats == ("bf16", "int8")
    assert read_cpu(x86).model_name == "AMD EPYC"
    assert read_cpu(arm).formats == ("bf16", "int8")


def test_this_machine_is_read_within_its_own_bounds(tmp_path: Path) -> None:
    hardware = detect(tmp_path / "not" / "there" / "yet")
    assert isinstance(hardware, Hardware)
    assert 0 < hardware.ram_available_bytes <= hardware.ram_total_bytes
    assert hardware.ram_total_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 1 <= hardware.cpu_cores <= len(os.sched_getaffinity(0))
    assert hardware.disk_free_bytes > 0


def test_two_threads_of_one_core_are_one_core(tmp_path: Path) -> None:
    siblings = {0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5"}
    root = _tree(
        tmp_path,
        {f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list": f"{of}\n" for core, of in siblings.items()},
    )
    assert count_physical_cores(root, frozenset({0, 4, 1, 5})) == 2
    assert count_physical_cores(root, frozenset({0, 1})) == 2
    assert count_physical_cores(root, frozenset({8, 9})) == 2, "without a topology each counts"


def test_memory_nodes_without_cores_are_none_that_threads_run_on(tmp_path: Path) -> None:
    assert count_numa_nodes(tmp_path) == 1
    files = {"node0/cpulist": "0-3\n", "node1/cpulist": "4-7\n", "node2/cpulist": "\n"}
    root = _tree(tmp_path, {f"sys/devices/system/node/{name}": text for name, text in files.items()})
    assert count_numa_nodes(root) == 2


def test_without_proc_the_system_tells_the_ram(tmp_path: Path) -> None:
    """MacOS has no /proc."""
    memory = read_memory(tmp_path)
    assert memory.total_bytes >= read_memory().total_bytes
    assert memory.available_bytes == memory.total_bytes // 2
