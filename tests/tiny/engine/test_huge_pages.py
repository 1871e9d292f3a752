"""Memory of packed weights in huge pages (`qserve/model/cpu/huge_pages.py`)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from qserve.model.cpu.huge_pages import empty_bytes
from qserve.model.cpu.matrix import bfloat16_matrix

HUGE = 2 * 1024**2
LENDS = Path("/sys/kernel/mm/transparent_hugepage")
_HEADS = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) ", re.MULTILINE)


def flags_at(address: int) -> list[str]:
    """What the kernel knows of the memory there; "hg": huge pages were asked for."""
    text = Path("/proc/self/smaps").read_text()
    for head in _HEADS.finditer(text):
        if int(head[1], 16) <= address < int(head[2], 16):
            return text[text.index("VmFlags:", head.end()) :].split("\n", 1)[0].split()[1:]
    raise AssertionError("nothing is mapped there")


@pytest.mark.parametrize("count", [0, 1, HUGE - 1, HUGE, 5 * HUGE + 77])
def test_as_many_bytes_as_asked_for_at_a_cache_line(count: int) -> None:
    given = empty_bytes(count)

    assert given.shape == (count,)
    assert given.dtype == torch.uint8
    assert given.data_ptr() % 64 == 0
    given.fill_(3)
    assert given.sum().item() == 3 * count


@pytest.mark.skipif(not LENDS.exists(), reason="this kernel has no transparent huge pages")
def test_a_packed_weight_begins_a_huge_page_that_was_asked_for() -> None:
    made = bfloat16_matrix(torch.randn(1024, 1024, dtype=torch.bfloat16))

    assert made is not None
    assert made.codes.data_ptr() % HUGE == 0
    assert "hg" in flags_at(made.codes.data_ptr())


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_memory_goes_back_with_the_tensor() -> None:
    given = empty_bytes(32 * HUGE).fill_(1)
    address = given.data_ptr()
    before = resident_bytes()

    del given

    assert resident_bytes() < before - 30 * HUGE
    with pytest.raises(AssertionError, match="nothing is mapped"):
        flags_at(address + 16 * HUGE)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
