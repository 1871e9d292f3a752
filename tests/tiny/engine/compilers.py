"""The compiled library of a CPU as other processors get it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from qserve.detect.host import read_cpu
from qserve.model.cpu import build

__all__ = ["COMPILERS", "HAS_VNNI", "compiled_by"]

HAS_VNNI = any("vnni" in flag for flag in read_cpu().flags)
"""AVX2 without it rounds activations of 4-bit integers alone, since no others would be faster (planes.h)."""

COMPILERS = {
    "best": None,
    "without AMX": "gcc -mno-amx-tile -mno-amx-bf16 -mno-amx-int8",
    "without AVX512-BF16": "gcc -mno-avx512bf16 -mno-avx512vbmi",
    "without AVX512": "gcc -mno-avx512f",
    "plain": "gcc -march=x86-64",
}


_NEEDED = {"without AMX": "amx_bf16", "without AVX512-BF16": "avx512_bf16"}
_AVX_VNNI = {"AVX-VNNI": "gcc -mno-avx512bf16 -DNARROW_VECTORS"}
"""For tests of integers alone: the same instructions as AVX-512 has them for 256 bits."""


@contextmanager
def compiled_by(name: str) -> Iterator[None]:
    """The library as this processor gets it, and as poorer ones do; skips where there is none."""
    kept, command = os.environ.get("CC"), (COMPILERS | _AVX_VNNI)[name]
    if command is not None:
        if os.uname().machine != "x86_64":
            pytest.skip("these compiler flags are of x86-64")
        if (flag := _NEEDED.get(name)) is not None and flag not in read_cpu().flags:
            pytest.skip("this processor has none: its best library is that one")
        if name == "AVX-VNNI" and "avx512_vnni" not in read_cpu().flags:
            pytest.skip("this processor has no instructions to try it out with")
        os.environ["CC"] = command
    build._built.cache_clear()
    try:
        if build.why_none() is not None:
            pytest.skip(str(build.why_none()))
        yield
    finally:  # a test that fails here must not leave its library to those after it
        os.environ.pop("CC", None)
        if kept is not None:
            os.environ["CC"] = kept
        build._built.cache_clear()
