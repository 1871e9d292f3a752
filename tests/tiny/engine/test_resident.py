"""What holds a process's resident memory: every page is counted once."""

from __future__ import annotations

import mmap

import psutil
import pytest
import torch

from qserve.model.resident import Mappings, parse_smaps, resident_bytes_of, resident_terms
from qserve.units import MIB

_SMAPS = """\
55d0c0000000-55d0c0100000 r-xp 00000000 08:01 42   /usr/bin/python3.11
Rss:                 800 kB
Pss:                 200 kB
7f0000000000-7f0000100000 rw-p 00000000 00:00 0    [heap]
Rss:                 512 kB
Pss:                 512 kB
7f1000000000-7f1000004000 r-xp 00000000 00:00 0
Rss:                  16 kB
Pss:                  16 kB
VmFlags: rd ex mr mw me sd
7f2000000000-7f2000004000 rw-s 00000000 00:01 7    /memfd:pool (deleted)
Rss:                   8 kB
Pss:                   4 kB
"""


def test_mappings_are_told_apart() -> None:
    kib = 1024
    assert parse_smaps(_SMAPS.splitlines()) == Mappings(800 * kib, 16 * kib, 520 * kib, 604 * kib)


def test_packed_weights_that_are_mapped_count_as_weights() -> None:
    file = "/home/u/.cache/qserve/packed/0a-1b.qserve-packed"
    lines = [
        f"7f3000000000-7f3000100000 r--s 00000000 08:01 43   {file}",
        "Size:  1024 kB",
        "Rss:  800 kB",
        "Pss:  400 kB",
        f"7f4000000000-7f4000100000 r--s 00000000 08:01 44   {file} (deleted)",
        "Size:  64 kB",
        "Rss:  8 kB",
    ]
    found = parse_smaps(lines)
    assert (found.packed_bytes, found.packed_size_bytes, found.files_bytes) == (808 * 1024, 1088 * 1024, 0)
    assert found.total_bytes == 808 * 1024


def test_parts_sum_to_what_the_system_says() -> None:
    memory = psutil.Process().memory_full_info()
    parts = resident_terms(weights_bytes=3 * MIB, cache_bytes=5 * MIB)
    shared = parts.pop("shared_bytes")
    assert sum(parts.values()) == pytest.approx(memory.rss, rel=0.02)
    assert sum(parts.values()) - shared == pytest.approx(memory.pss, rel=0.02)


def test_a_page_counts_once_it_was_written() -> None:
    # A mapping of its own: a tensor of torch.empty may lie in memory that an earlier test wrote.
    pool = torch.frombuffer(mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=torch.uint8)
    assert resident_bytes_of([pool]) < MIB
    pool[: 16 * MIB] = 1
    assert 16 * MIB <= resident_bytes_of([pool]) < 20 * MIB
    assert resident_bytes_of([torch.empty(MIB, device="meta")]) == 0
